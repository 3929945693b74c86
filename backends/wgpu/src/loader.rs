//! Whether the Vulkan loader is there.
//!
//! wgpu finds no adapter both without a loader and without a driver; what to install differs. The
//! system's linker alone knows where it would look, and to ask it means to load the library, which
//! Rust counts as unsafe: loading runs the library's initialisers.
#![expect(unsafe_code, reason = "loading a library runs its initialisers")]

/// Whether the library is there through which adapters are found. Metal is part of macOS.
pub(crate) fn is_there() -> bool {
    let names: &[&str] = if cfg!(target_os = "windows") {
        &["vulkan-1.dll"]
    } else if cfg!(target_os = "macos") {
        return true;
    } else {
        &["libvulkan.so.1", "libvulkan.so"]
    };
    // SAFETY: wgpu loads the same library, by the same names, in the next step, so its initialisers
    // run in this process in any case. No symbol is taken from it.
    let loads = |name: &&str| unsafe { libloading::Library::new(name) }.is_ok();
    names.iter().any(loads)
}

//! CubeCL, which computes on GPUs for several accelerators.

use cubecl_common::config::RuntimeConfig;
use cubecl_runtime::config::CubeClRuntimeConfig;
use std::sync::Arc;

/// Has all threads share one stream of work and one pool of memory on each GPU, from the next GPU on
/// that is used for the first time.
///
/// By default CubeCL gives every thread its own. In the version that Burn 0.21 is built on (0.10), the
/// memory of a tensor is free for the thread that made it as soon as its last handle is gone, even if
/// another thread's work that reads it still waits to be done: the batch that a loader's thread makes
/// next is written over the one that the model is to see. (CubeCL's pull requests 1417 and 1434 mend
/// it.) The work on one stream is done in the order in which it was asked for. The lazy operations
/// that fusion joins into kernels still are each thread's own.
///
/// Other settings stay as `cubecl.toml` and the environment have them.
pub fn share_streams() {
    let mut stored = CubeClRuntimeConfig::storage().lock();
    let mut config = match &*stored {
        Some(config) if config.streaming.max_streams == 1 => return,
        Some(config) => CubeClRuntimeConfig::clone(config),
        // As CubeCL does at its first use.
        None => CubeClRuntimeConfig::from_current_dir().override_from_env(),
    };
    config.streaming.max_streams = 1;
    *stored = Some(Arc::new(config));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl_runtime::config::memory::PersistentMemory;

    #[test]
    fn what_was_set_before_stays() {
        let mut config = CubeClRuntimeConfig::default();
        config.memory.persistent_memory = PersistentMemory::Disabled;
        CubeClRuntimeConfig::set(config);
        share_streams();
        let config = CubeClRuntimeConfig::get();
        assert_eq!(config.streaming.max_streams, 1);
        let memory = &config.memory.persistent_memory;
        assert!(matches!(memory, PersistentMemory::Disabled));
    }
}

//! How devices say that something does not fit in their memory.

use crate::error::Error;

/// What the texts have in them, in lower case. Backends report it in a panic, or in an error of a
/// kind that they have for everything else, too, so that there is nothing but the text to go by.
const TEXTS: &[&str] = &[
    // wgpu, HIP, and what CUDA says of CUDA_ERROR_OUT_OF_MEMORY.
    "out of memory",
    "out_of_memory",
    // CubeCL, of a kernel's launch.
    "out-of-memory",
    "outofmemory",
    // CubeCL, of a tensor; CUDA's error does not get through to here.
    "can't allocate buffer",
    "buffertoobig",
    // wgpu, of a buffer, of one that no smaller memory could be blamed for, and of one that a kernel
    // cannot be given whole.
    "not enough memory",
    "greater than the maximum buffer size",
    "buffer_binding_size` limit",
    "an oom error",
    // Linux and Rust, of the host's memory.
    "cannot allocate memory",
    "memory allocation failed",
];

/// Whether an error, or what it came from, says that memory ran out.
pub(super) fn is_out_of_memory(error: &Error) -> bool {
    // The whole chain of sources is in the text.
    let text = error.to_string().to_lowercase();
    TEXTS.iter().any(|part| text.contains(part))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::panics;

    #[test]
    fn what_backends_say_is_recognized() {
        let texts = [
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            "An execution error happened during profiling\nCaused by:\n  can't allocate buffer of \
             size: 137438953472\n",
            "The server is in an invalid state\nCaused by:\n  [An execution error happened during \
             profiling\nCaused by:\n  can't allocate buffer of size: 274877906944\n]",
            "An out-of-memory error happened during launch\nCaused by:\n  Out of memory when \
             launching kernel: KernelId\nBacktrace\n",
            "IoError::BufferTooBig { size: 4294967296 }",
            "wgpu error: Out of Memory\n",
            "Error in Device::create_buffer: Not enough memory left.",
            "wgpu error: Validation Error\n\nCaused by:\n  In Device::create_buffer\n    Buffer \
             size 8589934592 is greater than the maximum buffer size (4294967296)\n",
            "Buffer binding 1 range 4294967296 exceeds `max_*_buffer_binding_size` limit 2147483647",
            "We ran into an OOM error while waiting on the last successful submission to complete!",
            "hipErrorOutOfMemory",
            "Cannot allocate memory (os error 12)",
            "memory allocation failed because the memory allocator returned an error",
        ];
        for text in texts {
            assert!(is_out_of_memory(&Error::user(text)), "{text}");
            let panicked = panics::catch::<()>(ErrorKind::User, || panic!("{text}"));
            assert!(is_out_of_memory(&panicked.unwrap_err()), "{text}");
        }
    }

    #[test]
    fn sources_and_places_count() {
        let source = std::io::Error::other("CUDA_ERROR_OUT_OF_MEMORY");
        let error = Error::new(ErrorKind::Backend, "cannot read a tensor").with_source(source);
        assert!(is_out_of_memory(&error.context("epoch 0, batch 1, step 1")));
    }

    #[test]
    fn other_errors_are_not() {
        let texts = [
            "the data set is empty; it needs at least one sample",
            "panicked: shapes [2, 3] and [4, 3] do not fit",
            "An unknown error happened during launch\nCaused by:\n  invalid argument",
            "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")",
            "the memory of the machine is fine",
        ];
        for text in texts {
            assert!(!is_out_of_memory(&Error::user(text)), "{text}");
        }
    }
}

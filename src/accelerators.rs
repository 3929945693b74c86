//! The accelerators that are compiled in.

use firebox_backend::{Accelerator, Kind};
use std::any::TypeId;

/// Gives the list of accelerators, the preferred first, to another macro. Adding one is a line
/// here: the feature that compiles it in, and its type.
macro_rules! for_each_accelerator {
    ($macro:ident) => {
        $macro! {
            "flex" => firebox_flex::Flex,
            "ndarray" => firebox_ndarray::NdArray,
        }
    };
}
pub(crate) use for_each_accelerator;

macro_rules! kind_of_backend {
    ($($feature:literal => $accelerator:path),* $(,)?) => {
        fn kind<B: 'static>() -> Option<Kind> {
            let backend = TypeId::of::<B>();
            $(
                #[cfg(feature = $feature)]
                if backend == TypeId::of::<<$accelerator as Accelerator>::Backend>() {
                    return Some(<$accelerator>::KIND);
                }
            )*
            None
        }
    };
}

for_each_accelerator!(kind_of_backend);

/// Whether the backend is that of an accelerator that computes in the host's memory.
pub(crate) fn on_host<B: 'static>() -> bool {
    kind::<B>() == Some(Kind::Cpu)
}

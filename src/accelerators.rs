//! The accelerators that are compiled in.

use crate::error::{Error, ErrorKind, Result};
use firebox_backend::{Accelerator, Balanced, DeviceInfo, DeviceStats, Kind, Unavailable, host};
use std::any::TypeId;

/// Gives the list of accelerators, the preferred first, to another macro. Adding one is a line
/// here: the feature that compiles it in, and its type.
macro_rules! for_each_accelerator {
    ($macro:ident) => {
        $macro! {
            "cuda" => firebox_cuda::Cuda,
            "rocm" => firebox_rocm::Rocm,
            "wgpu" => firebox_wgpu::Wgpu,
            "flex" => firebox_flex::Flex,
            "ndarray" => firebox_ndarray::NdArray,
        }
    };
}
pub(crate) use for_each_accelerator;

/// An accelerator that is compiled in, as data.
#[derive(Clone, Copy)]
pub(crate) struct Compiled {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) kind: Kind,
    /// Finds the devices; asked only when the answer matters, since it loads drivers.
    pub(crate) probe: fn() -> Result<Vec<DeviceInfo>, Unavailable>,
}

impl Compiled {
    fn of<A: Accelerator>() -> Self {
        Self {
            name: A::NAME,
            aliases: A::ALIASES,
            kind: A::KIND,
            probe: A::probe,
        }
    }

    /// Whether users may type this name for it.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

macro_rules! accelerator_list {
    ($($feature:literal => $accelerator:path),* $(,)?) => {
        /// The accelerators that are compiled in, the preferred first.
        pub(crate) fn compiled() -> Vec<Compiled> {
            vec![$(
                #[cfg(feature = $feature)]
                Compiled::of::<$accelerator>(),
            )*]
        }

        /// The features that compile an accelerator in, whether or not they are on.
        pub(crate) const FEATURES: &[&str] = &[$($feature),*];

        fn kind<B: 'static>() -> Option<Kind> {
            let backend = TypeId::of::<B>();
            $(
                #[cfg(feature = $feature)]
                if backend == TypeId::of::<<$accelerator as Accelerator>::Backend>()
                    || backend == TypeId::of::<Balanced<<$accelerator as Accelerator>::Backend>>()
                {
                    return Some(<$accelerator>::KIND);
                }
            )*
            None
        }
    };
}

for_each_accelerator!(accelerator_list);

/// Whether the backend is that of an accelerator that computes in the host's memory.
pub(crate) fn on_host<B: 'static>() -> bool {
    kind::<B>() == Some(Kind::Cpu)
}

/// The devices of a run, and how to ask how busy they are.
#[derive(Debug, Clone)]
pub(crate) struct Hardware {
    /// The accelerator's name; none where the program has chosen the devices itself.
    pub(crate) accelerator: Option<&'static str>,
    pub(crate) ids: Vec<usize>,
    stats: fn(usize) -> Result<DeviceStats, Unavailable>,
}

impl Hardware {
    pub(crate) fn of<A: Accelerator>(ids: &[usize]) -> Self {
        Self {
            accelerator: Some(A::NAME),
            ids: ids.to_vec(),
            stats: A::stats,
        }
    }

    /// That of a program that has chosen the devices itself: its processor is known.
    pub(crate) fn unnamed<B: 'static>() -> Self {
        Self {
            accelerator: None,
            ids: vec![0],
            stats: match on_host::<B>() {
                true => |_| Ok(host::stats()),
                false => |_| Err(Unavailable::new("the device was not chosen by `launch`")),
            },
        }
    }

    /// How busy each device is.
    ///
    /// # Errors
    /// The platform does not tell.
    pub(crate) fn stats(&self) -> Result<Vec<DeviceStats>> {
        let stats = self.ids.iter().map(|id| (self.stats)(*id));
        let stats = stats.collect::<Result<_, _>>();
        stats.map_err(|why| Error::new(ErrorKind::Unavailable, why.to_string()))
    }
}

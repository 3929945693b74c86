//! From the adapters of a machine to Burn's devices.

use burn_wgpu::WgpuDevice;
use firebox_backend::{DeviceInfo, DeviceType, Unavailable};
use wgpu::{AdapterInfo, Backend};

/// The programming interface that Burn uses on this system, and no other.
pub(crate) const API: Backend = match cfg!(target_os = "macos") {
    true => Backend::Metal,
    false => Backend::Vulkan,
};

/// What a probe asks of a machine.
pub(crate) trait Machine {
    /// Whether the library is there through which adapters are found.
    fn has_loader(&self) -> bool;

    /// The adapters, in the system's order.
    fn adapters(&self) -> Vec<Adapter>;
}

/// An adapter as its driver describes it.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    name: String,
    device_type: wgpu::DeviceType,
    driver: String,
}

impl From<AdapterInfo> for Adapter {
    fn from(info: AdapterInfo) -> Self {
        Self {
            name: info.name,
            device_type: info.device_type,
            driver: format!("{} {}", info.driver, info.driver_info),
        }
    }
}

/// An adapter, and Burn's device for it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) info: DeviceInfo,
    pub(crate) device: WgpuDevice,
}

/// The adapters that Burn can reach, the best first; ids count in that order.
pub(crate) fn find(machine: &impl Machine) -> Result<Vec<Found>, Unavailable> {
    if !machine.has_loader() {
        return Err(Unavailable::new(
            "the Vulkan loader is missing (libvulkan.so.1, in package libvulkan1 or vulkan-loader)",
        ));
    }
    let adapters = machine.adapters();
    if adapters.is_empty() {
        return Err(Unavailable::new(format!(
            "no adapter speaks {API:?}; install the GPU's driver"
        )));
    }
    let types: Vec<_> = adapters.iter().map(|a| a.device_type).collect();
    let mut reachable: Vec<_> = adapters
        .into_iter()
        .zip(burn_devices(&types))
        .filter_map(|(adapter, device)| device.map(|device| (adapter, device)))
        .collect();
    reachable.sort_by_key(|(adapter, _)| rank(adapter.device_type));
    let found = reachable.into_iter().enumerate();
    Ok(found
        .map(|(id, (adapter, device))| Found {
            info: info(id, adapter),
            device,
        })
        .collect())
}

/// Burn's device for each adapter, if there is one.
///
/// Burn counts adapters within their type. Those of no type it reaches by an index of any other
/// type that has not so many adapters; a second software adapter it does not reach at all. Its own
/// listing of all devices counts over all types together, so that its indices are wrong where
/// there are several types.
fn burn_devices(types: &[wgpu::DeviceType]) -> Vec<Option<WgpuDevice>> {
    use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
    let count = |wanted| types.iter().filter(|ty| **ty == wanted).count();
    let device = |(position, ty): (usize, &wgpu::DeviceType)| {
        let before = types.iter().take(position);
        let index = before.filter(|other| *other == ty).count();
        match ty {
            DiscreteGpu => Some(WgpuDevice::DiscreteGpu(index)),
            IntegratedGpu => Some(WgpuDevice::IntegratedGpu(index)),
            VirtualGpu => Some(WgpuDevice::VirtualGpu(index)),
            Cpu => (index == 0).then_some(WgpuDevice::Cpu),
            Other if count(DiscreteGpu) <= index => Some(WgpuDevice::DiscreteGpu(index)),
            Other if count(IntegratedGpu) <= index => Some(WgpuDevice::IntegratedGpu(index)),
            Other if count(VirtualGpu) <= index => Some(WgpuDevice::VirtualGpu(index)),
            Other => None,
        }
    };
    types.iter().enumerate().map(device).collect()
}

fn rank(ty: wgpu::DeviceType) -> u8 {
    match ty {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

fn info(id: usize, adapter: Adapter) -> DeviceInfo {
    let device_type = match adapter.device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceType::DiscreteGpu,
        wgpu::DeviceType::IntegratedGpu => DeviceType::IntegratedGpu,
        wgpu::DeviceType::VirtualGpu => DeviceType::VirtualGpu,
        wgpu::DeviceType::Other => DeviceType::OtherGpu,
        wgpu::DeviceType::Cpu => DeviceType::SoftwareGpu,
    };
    DeviceInfo::new(id, adapter.name, device_type)
        .with_driver(adapter.driver.trim())
        .with_api(format!("{API:?}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};

    struct Fake {
        loader: bool,
        adapters: Vec<(&'static str, wgpu::DeviceType)>,
    }

    impl Machine for Fake {
        fn has_loader(&self) -> bool {
            self.loader
        }
        fn adapters(&self) -> Vec<Adapter> {
            let adapter = |(name, device_type): &(&str, _)| Adapter {
                name: (*name).into(),
                device_type: *device_type,
                driver: "fake".into(),
            };
            self.adapters.iter().map(adapter).collect()
        }
    }

    fn find_all(
        adapters: &[(&'static str, wgpu::DeviceType)],
    ) -> Vec<(usize, String, DeviceType, WgpuDevice)> {
        let fake = Fake {
            loader: true,
            adapters: adapters.to_vec(),
        };
        let found = find(&fake).unwrap().into_iter();
        found
            .map(|f| (f.info.id, f.info.name, f.info.device_type, f.device))
            .collect()
    }

    #[test]
    fn a_missing_loader_and_a_missing_driver_are_told_apart() {
        let why = |loader| {
            let adapters = Vec::new();
            find(&Fake { loader, adapters }).unwrap_err().to_string()
        };
        assert!(why(false).contains("libvulkan.so.1"), "{}", why(false));
        assert!(why(true).contains("no adapter"), "{}", why(true));
    }

    #[test]
    fn ids_are_right_with_adapters_of_several_types() {
        // Burn's own listing would call the discrete one `DiscreteGpu(1)`, which does not exist.
        let found = find_all(&[
            ("laptop", IntegratedGpu),
            ("card", DiscreteGpu),
            ("llvmpipe", Cpu),
            ("second card", DiscreteGpu),
        ]);
        let expected = [
            (
                0,
                "card",
                DeviceType::DiscreteGpu,
                WgpuDevice::DiscreteGpu(0),
            ),
            (
                1,
                "second card",
                DeviceType::DiscreteGpu,
                WgpuDevice::DiscreteGpu(1),
            ),
            (
                2,
                "laptop",
                DeviceType::IntegratedGpu,
                WgpuDevice::IntegratedGpu(0),
            ),
            (3, "llvmpipe", DeviceType::SoftwareGpu, WgpuDevice::Cpu),
        ];
        let expected = expected.map(|(id, name, ty, device)| (id, name.to_owned(), ty, device));
        assert_eq!(found, expected);
    }

    #[test]
    fn adapters_without_a_type_are_reached_where_burn_can() {
        assert_eq!(
            burn_devices(&[DiscreteGpu, Other, Other]),
            [
                Some(WgpuDevice::DiscreteGpu(0)),
                Some(WgpuDevice::IntegratedGpu(0)),
                Some(WgpuDevice::DiscreteGpu(1)),
            ]
        );
        let types = [DiscreteGpu, IntegratedGpu, VirtualGpu, Other, Cpu, Cpu];
        assert_eq!(
            burn_devices(&types)[3..],
            [None, Some(WgpuDevice::Cpu), None]
        );
    }

    #[test]
    fn a_software_adapter_is_found_and_called_so() {
        let found = find_all(&[("llvmpipe", Cpu)]);
        assert_eq!(
            found,
            [(
                0,
                "llvmpipe".into(),
                DeviceType::SoftwareGpu,
                WgpuDevice::Cpu
            )]
        );
    }
}

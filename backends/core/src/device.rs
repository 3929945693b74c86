//! What is known of a device.

use std::fmt;

/// A device that a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The id users give in `--devices`.
    pub id: usize,
    /// The device's own name.
    pub name: String,
    /// What it is.
    pub device_type: DeviceType,
    /// Its memory, in bytes.
    pub memory: Option<u64>,
    /// The driver and its version.
    pub driver: Option<String>,
    /// The programming interface it is reached through, for example Vulkan.
    pub api: Option<String>,
}

impl DeviceInfo {
    /// A device with this id, name and type, of which nothing else is known.
    pub fn new(id: usize, name: impl Into<String>, device_type: DeviceType) -> Self {
        Self {
            id,
            name: name.into(),
            device_type,
            memory: None,
            driver: None,
            api: None,
        }
    }

    /// Sets the memory, in bytes.
    #[must_use]
    pub fn with_memory(mut self, bytes: Option<u64>) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the driver and its version.
    #[must_use]
    pub fn with_driver(mut self, driver: impl Into<String>) -> Self {
        self.driver = Some(driver.into());
        self
    }

    /// Sets the programming interface.
    #[must_use]
    pub fn with_api(mut self, api: impl Into<String>) -> Self {
        self.api = Some(api.into());
        self
    }
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceType {
    /// The host's processor.
    Cpu,
    /// A graphics processor with memory of its own.
    DiscreteGpu,
    /// A graphics processor that shares the host's memory.
    IntegratedGpu,
    /// A graphics processor lent by a hypervisor.
    VirtualGpu,
    /// A graphics processor that does not say which.
    OtherGpu,
    /// A program that pretends to be a graphics processor. It is slower than the host's processor
    /// used directly, so it is taken only by name.
    SoftwareGpu,
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cpu => "CPU",
            Self::DiscreteGpu => "discrete GPU",
            Self::IntegratedGpu => "integrated GPU",
            Self::VirtualGpu => "virtual GPU",
            Self::OtherGpu => "GPU",
            Self::SoftwareGpu => "software GPU",
        })
    }
}

/// How busy a device is. What the platform does not tell is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeviceStats {
    /// Memory in use by all programs, in bytes.
    pub memory_used: Option<u64>,
    /// Memory that is left, in bytes.
    pub memory_free: Option<u64>,
    /// The share of time in which the device was at work, from 0 to 1, as the platform averages it.
    pub utilization: Option<f64>,
}

/// Why an accelerator cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(String);

impl Unavailable {
    /// Unavailable for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

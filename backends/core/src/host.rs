//! The host's processor, for accelerators that compute on it.

use crate::{DeviceInfo, DeviceStats, DeviceType};
use std::sync::{LazyLock, Mutex, PoisonError};
use sysinfo::System;

/// Kept between calls: the use of a processor is measured from one look to the next.
static SYSTEM: LazyLock<Mutex<System>> = LazyLock::new(|| Mutex::new(System::new()));

/// The host's processor, with id 0.
pub fn device() -> DeviceInfo {
    let mut system = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    system.refresh_memory();
    let memory = Some(system.total_memory()).filter(|bytes| *bytes > 0);
    DeviceInfo::new(0, "CPU", DeviceType::Cpu).with_memory(memory)
}

/// The processor's cores, without those that two threads share; at least one.
pub fn physical_cores() -> usize {
    // A container may have fewer than the machine.
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let physical = System::physical_core_count().unwrap_or(logical);
    physical.clamp(1, logical)
}

/// The host's memory, and the share of its processor in use since the last call.
pub fn stats() -> DeviceStats {
    let mut system = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    system.refresh_memory();
    system.refresh_cpu_usage();
    let used = f64::from(system.global_cpu_usage()) / 100.0;
    DeviceStats {
        memory_used: Some(system.used_memory()),
        memory_free: Some(system.available_memory()),
        utilization: Some(used.clamp(0.0, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_memory_that_is_used_or_free() {
        let total = device().memory.unwrap_or(0);
        let stats = stats();
        let (used, free) = (
            stats.memory_used.unwrap_or(0),
            stats.memory_free.unwrap_or(0),
        );
        assert!(used > 0 && used < total, "{used} of {total}");
        assert!(free > 0 && free <= total, "{free} of {total}");
        assert!((0.0..=1.0).contains(&stats.utilization.unwrap_or(-1.0)));
    }
}

//! What Linux says about this process: its memory, its CPU time and when it started.

use std::path::Path;

/// Clock ticks a second in `/proc`: `USER_HZ`, which is 100 on every architecture that Rust's
/// standard library runs on, whatever `CONFIG_HZ` the kernel was built with (proc(5), time(7)).
const TICKS_PER_SECOND: f64 = 100.0;

/// The memory of this process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// What is in RAM now: `VmRSS`.
    pub(crate) resident: u64,
    /// The most that ever was: `VmHWM`.
    pub(crate) peak: u64,
}

/// The memory of this process now; `None` where there is no `/proc/self/status`.
pub(crate) fn memory() -> Option<Memory> {
    parse_memory(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// When this process started, in seconds since 1970; `None` where there is no `/proc`.
pub(crate) fn start_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    parse_start_time(&stat, &std::fs::read_to_string("/proc/stat").ok()?)
}

/// CPU time of the process that the file describes, of all its threads, in seconds: `/proc/self/stat`
/// for this process. `None` where there is no such file.
pub(crate) fn cpu_seconds(stat: &Path) -> Option<f64> {
    parse_cpu_seconds(&std::fs::read_to_string(stat).ok()?)
}

fn parse_memory(status: &str) -> Option<Memory> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(Memory {
        resident: bytes("VmRSS:")?,
        peak: bytes("VmHWM:")?,
    })
}

fn parse_start_time(stat: &str, system: &str) -> Option<f64> {
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<u64>().ok()? as f64 + field(stat, 22)? / TICKS_PER_SECOND)
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS_PER_SECOND)
}

/// A field by the number that proc(5) gives it, from 3 on.
fn field(stat: &str, number: usize) -> Option<f64> {
    // Field 2 is the program's name in parentheses, and may have spaces and parentheses in it.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: u64 = rest.split_whitespace().nth(number - 3)?.parse().ok()?;
    Some(ticks as f64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const STAT: &str = "4711 (a) b (c) R 1 2 3 4 -1 4194304 99 0 0 0 1234 66 7 8 20 0 9 0 616369 \
                        3133440 350 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0\n";

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tVmRSS:\nVmPeak:\t 9000 kB\nVmHWM:\t    1680 kB\nVmRSS:\t     12 kB\n";
        let expected = Memory {
            resident: 12 * 1024,
            peak: 1680 * 1024,
        };
        assert_eq!(parse_memory(status), Some(expected));
        for wrong in [
            "",
            "VmRSS: 1 kB\n",
            "VmRSS: x kB\nVmHWM: 1 kB\n",
            "VmRSS: 1\nVmHWM: 1\n",
        ] {
            assert_eq!(parse_memory(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_read_behind_a_name_with_parentheses() {
        assert_eq!(parse_cpu_seconds(STAT), Some(13.0));
        let system = "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n";
        assert_eq!(parse_start_time(STAT, system), Some(1_700_006_163.69));
        for wrong in ["", "1 (a) R 1", "1 (a) R 1 2 3 4 5 6 7 8 9 10 x 12"] {
            assert_eq!(parse_cpu_seconds(wrong), None, "{wrong}");
            assert_eq!(parse_start_time(wrong, system), None, "{wrong}");
        }
        assert_eq!(parse_start_time(STAT, "cpu 1\n"), None);
    }

    #[test]
    fn this_process_has_all_of_it() {
        let (Some(memory), Some(start)) = (memory(), start_time()) else {
            eprintln!("skipped: there is no /proc here");
            return;
        };
        assert!(
            memory.resident > 0 && memory.resident <= memory.peak,
            "{memory:?}"
        );
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        // Started before now, and later than the first Linux.
        assert!(start > 6.8e8 && start <= now.as_secs_f64() + 1.0, "{start}");
        assert!(cpu_seconds(Path::new("/proc/self/stat")).unwrap() >= 0.0);
        assert_eq!(cpu_seconds(Path::new("/nowhere/stat")), None);
    }
}

//! Which accelerator a run uses, and which of its devices.

use crate::accelerators::{Compiled, FEATURES};
use crate::config::{AcceleratorName, Devices};
use crate::error::{Error, ErrorKind, Result};
use firebox_backend::{DeviceInfo, DeviceType, Kind, host};
use std::fmt;

/// An accelerator and its devices to use, and why those before it were passed over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) accelerator: &'static str,
    pub(super) devices: Vec<DeviceInfo>,
    passed_over: Vec<PassedOver>,
}

/// An accelerator's name, and why it was not taken.
type PassedOver = (&'static str, String);

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accelerator: {} (", self.accelerator)?;
        let same = self.devices.chunk_by(|a, b| a.name == b.name);
        for (index, devices) in same.enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            match devices {
                [one] => write!(f, "{separator}{}", one.name)?,
                several => write!(f, "{separator}{} x {}", several.len(), several[0].name)?,
            }
        }
        f.write_str(")")?;
        for (name, why) in &self.passed_over {
            write!(f, "; not {name}: {why}")?;
        }
        Ok(())
    }
}

/// Picks the accelerator and its devices. `share` is which of the processes on this machine this one
/// is, and how many there are: they take its GPUs in turn.
pub(super) fn choose(
    name: &AcceleratorName,
    devices: &Devices,
    share: (usize, usize),
    compiled: &[Compiled],
) -> Result<Choice> {
    let name = name.as_str();
    let candidates = candidates(name, compiled);
    if candidates.is_empty() {
        return Err(unknown(name, compiled));
    }
    // Only who names an accelerator gets a program that pretends to be hardware.
    let by_name = !matches!(name, "auto" | "gpu" | "cpu");
    let mut passed_over = Vec::new();
    for candidate in candidates {
        match usable(candidate, by_name) {
            Ok(found) => {
                return Ok(Choice {
                    accelerator: candidate.name,
                    devices: choose_devices(devices, candidate, found, share)?,
                    passed_over,
                });
            }
            Err(why) => passed_over.push((candidate.name, why)),
        }
    }
    Err(none_available(name, &passed_over, compiled))
}

/// The accelerators that a name stands for, the preferred first.
fn candidates<'a>(name: &str, compiled: &'a [Compiled]) -> Vec<&'a Compiled> {
    let fits = |c: &&Compiled| match name {
        "auto" => true,
        "cpu" => c.kind == Kind::Cpu,
        "gpu" => c.kind == Kind::Gpu,
        name => c.is_called(name),
    };
    compiled.iter().filter(fits).collect()
}

/// The devices that a candidate offers, or why there are none.
fn usable(candidate: &Compiled, by_name: bool) -> Result<Vec<DeviceInfo>, String> {
    let found = (candidate.probe)().map_err(|why| why.to_string())?;
    let (software, hardware): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|d| d.device_type == DeviceType::SoftwareGpu);
    match (by_name, software.first()) {
        (true, _) => Ok([hardware, software].concat()),
        (false, Some(software)) if hardware.is_empty() => Err(format!(
            "there is only a software GPU, {}, which is slower than the CPU",
            software.name
        )),
        (false, None) if hardware.is_empty() => Err("it has no device".into()),
        (false, _) => Ok(hardware),
    }
}

fn none_available(name: &str, passed_over: &[PassedOver], compiled: &[Compiled]) -> Error {
    let why = match passed_over {
        [(only, why)] if *only == name => why.clone(),
        whys => {
            let whys: Vec<_> = whys.iter().map(|(n, why)| format!("{n}: {why}")).collect();
            whys.join("; ")
        }
    };
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "accelerator `{name}` is not available: {why}; {}",
            list(compiled)
        ),
    )
}

fn unknown(name: &str, compiled: &[Compiled]) -> Error {
    let feature = match name {
        "gpu" => Some("cuda`, `rocm` or `wgpu"),
        "webgpu" => Some("wgpu"),
        "vulkan" if cfg!(not(target_os = "macos")) => Some("wgpu` or `vulkan"),
        "metal" if cfg!(target_os = "macos") => Some("wgpu` or `metal"),
        name => FEATURES.iter().find(|feature| **feature == name).copied(),
    };
    let what = match (feature, name) {
        (Some(feature), _) => {
            format!("accelerator `{name}` needs the feature `{feature}`, which is not compiled in")
        }
        (None, "metal" | "vulkan") => {
            format!("accelerator `{name}` does not exist on this operating system")
        }
        (None, _) => format!("there is no accelerator `{name}`"),
    };
    Error::config(format!("{what}; {}", list(compiled)))
}

/// What is compiled in and what of it can be used.
fn list(compiled: &[Compiled]) -> String {
    let names = |available: bool| {
        let names: Vec<_> = compiled
            .iter()
            .filter(|c| !available || (c.probe)().is_ok())
            .map(|c| c.name)
            .collect();
        match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        }
    };
    format!(
        "compiled in: {}; available: {} (or auto, cpu, gpu)",
        names(false),
        names(true)
    )
}

fn choose_devices(
    wanted: &Devices,
    candidate: &Compiled,
    found: Vec<DeviceInfo>,
    (process, processes): (usize, usize),
) -> Result<Vec<DeviceInfo>> {
    let wrong = |what: String| {
        let known = found.iter().map(|d| format!("{}: {}", d.id, d.name));
        Error::config(format!(
            "`devices` is `{wanted}`, but {what}; {} has {}",
            candidate.name,
            known.collect::<Vec<_>>().join("; ")
        ))
    };
    // A processor holds as many replicas as it is asked to, in each process.
    if let (Kind::Cpu, Some(one)) = (candidate.kind, found.first()) {
        let replicas = match wanted {
            Devices::Auto => 1,
            Devices::All => (host::physical_cores() / processes).max(1),
            Devices::Count(n) if *n <= MOST_REPLICAS => *n,
            Devices::Count(_) => {
                let most = format!("a processor has at most {MOST_REPLICAS} replicas");
                return Err(wrong(most));
            }
            Devices::Ids(ids) => match ids.iter().find(|id| **id != one.id) {
                None => 1,
                Some(id) => return Err(wrong(format!("device {id} does not exist"))),
            },
        };
        return Ok(vec![one.clone(); replicas]);
    }
    let of_id = |id: &usize| {
        let device = found.iter().find(|d| d.id == *id);
        device.ok_or_else(|| wrong(format!("device {id} does not exist")))
    };
    let candidates: Vec<&DeviceInfo> = match wanted {
        Devices::Ids(ids) => ids.iter().map(of_id).collect::<Result<_>>()?,
        _ => found.iter().collect(),
    };
    let each = match wanted {
        Devices::Auto => 1,
        Devices::All | Devices::Ids(_) => (candidates.len() / processes).max(1),
        Devices::Count(n) => *n,
    };
    // The processes of one machine take its devices in turn.
    let mine = candidates.iter().skip(process * each).take(each);
    match (each * processes <= candidates.len(), candidates.len()) {
        (true, _) => Ok(mine.map(|device| (*device).clone()).collect()),
        (false, 1) if processes == 1 => Err(wrong("there is only 1 device".into())),
        (false, n) if processes == 1 => Err(wrong(format!("there are only {n} devices"))),
        (false, n) => Err(wrong(format!(
            "each of the {processes} processes on this machine needs {each}, of {n}"
        ))),
    }
}

/// More replicas than any processor has use for.
const MOST_REPLICAS: usize = 1024;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use firebox_backend::Unavailable;

    type Found = Result<Vec<DeviceInfo>, Unavailable>;

    fn missing() -> Found {
        Err(Unavailable::new("no driver"))
    }
    fn llvmpipe() -> DeviceInfo {
        DeviceInfo::new(1, "llvmpipe", DeviceType::SoftwareGpu)
    }
    fn card() -> DeviceInfo {
        DeviceInfo::new(0, "card", DeviceType::DiscreteGpu)
    }
    fn software() -> Found {
        Ok(vec![llvmpipe()])
    }
    fn card_and_software() -> Found {
        Ok(vec![card(), llvmpipe()])
    }
    fn processor() -> Found {
        Ok(vec![DeviceInfo::new(0, "CPU", DeviceType::Cpu)])
    }

    /// A machine's accelerators: what the probes of `cuda` and `wgpu` find, and a processor.
    fn machine(cuda: fn() -> Found, wgpu: fn() -> Found) -> [Compiled; 4] {
        let accelerator = |name, aliases, kind, probe| Compiled {
            name,
            aliases,
            kind,
            probe,
        };
        [
            accelerator("cuda", &[], Kind::Gpu, cuda),
            accelerator("wgpu", &["webgpu", "vulkan"], Kind::Gpu, wgpu),
            accelerator("flex", &[], Kind::Cpu, processor),
            accelerator("ndarray", &[], Kind::Cpu, processor),
        ]
    }

    fn pick(name: &str, machine: &[Compiled]) -> Result<(&'static str, String), String> {
        let choice = choose(&name.into(), &Devices::Auto, (0, 1), machine);
        let choice = choice.map_err(|e| e.to_string())?;
        Ok((choice.accelerator, choice.devices[0].name.clone()))
    }

    #[test]
    fn auto_takes_the_best_hardware() {
        let best = |cuda, wgpu| pick("auto", &machine(cuda, wgpu)).unwrap().0;
        assert_eq!(best(|| Ok(vec![card()]), card_and_software), "cuda");
        assert_eq!(best(missing, card_and_software), "wgpu");
        assert_eq!(best(missing, missing), "flex");
        assert_eq!(best(missing, software), "flex");
    }

    #[test]
    fn the_choice_says_why_others_were_passed_over() {
        let machine = machine(missing, software);
        let choice = choose(&"auto".into(), &Devices::Auto, (0, 1), &machine).unwrap();
        assert_eq!(
            choice.to_string(),
            "accelerator: flex (CPU); not cuda: no driver; not wgpu: there is only a software GPU, \
             llvmpipe, which is slower than the CPU"
        );
    }

    #[test]
    fn groups_and_aliases() {
        let machine = machine(missing, card_and_software);
        assert_eq!(pick("cpu", &machine).unwrap().0, "flex");
        assert_eq!(pick("gpu", &machine), Ok(("wgpu", "card".into())));
        assert_eq!(pick("vulkan", &machine).unwrap().0, "wgpu");
        assert_eq!(pick("webgpu", &machine).unwrap().0, "wgpu");
        assert_eq!(pick("ndarray", &machine).unwrap().0, "ndarray");
    }

    #[test]
    fn a_software_gpu_is_taken_by_name_alone() {
        let machine = machine(missing, software);
        assert_eq!(pick("wgpu", &machine), Ok(("wgpu", "llvmpipe".into())));
        assert_eq!(
            pick("gpu", &machine).unwrap_err(),
            "accelerator `gpu` is not available: cuda: no driver; wgpu: there is only a software \
             GPU, llvmpipe, which is slower than the CPU; compiled in: cuda, wgpu, flex, ndarray; \
             available: wgpu, flex, ndarray (or auto, cpu, gpu)"
        );
    }

    #[test]
    fn what_cannot_be_had_is_said_with_what_can() {
        let machine = machine(missing, missing);
        let list =
            "compiled in: cuda, wgpu, flex, ndarray; available: flex, ndarray (or auto, cpu, gpu)";
        let error = choose(&"cuda".into(), &Devices::Auto, (0, 1), &machine).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert_eq!(
            error.to_string(),
            format!("accelerator `cuda` is not available: no driver; {list}")
        );
        assert_eq!(
            pick("tpu", &machine).unwrap_err(),
            format!("there is no accelerator `tpu`; {list}")
        );
        assert_eq!(
            pick("rocm", &machine).unwrap_err(),
            format!(
                "accelerator `rocm` needs the feature `rocm`, which is not compiled in; {list}"
            )
        );
        let without_gpus = &machine[2..];
        assert_eq!(
            pick("gpu", without_gpus).unwrap_err(),
            "accelerator `gpu` needs the feature `cuda`, `rocm` or `wgpu`, which is not compiled \
             in; compiled in: flex, ndarray; available: flex, ndarray (or auto, cpu, gpu)"
        );
    }

    #[test]
    fn devices_by_id_by_count_and_wrong_ones() {
        let machine = machine(missing, card_and_software);
        let devices = |devices: &str| {
            let choice = choose(&"wgpu".into(), &devices.parse().unwrap(), (0, 1), &machine);
            choice.map(|c| c.devices[0].id).map_err(|e| e.to_string())
        };
        assert_eq!(devices("auto"), Ok(0));
        assert_eq!(devices("1"), Ok(0));
        assert_eq!(devices("1,"), Ok(1));
        let has = "wgpu has 0: card; 1: llvmpipe";
        assert_eq!(
            devices("2,"),
            Err(format!(
                "`devices` is `2,`, but device 2 does not exist; {has}"
            ))
        );
        assert_eq!(
            devices("3"),
            Err(format!(
                "`devices` is `3`, but there are only 2 devices; {has}"
            ))
        );
        let all = choose(&"wgpu".into(), &Devices::All, (0, 1), &machine).unwrap();
        assert_eq!(all.to_string(), "accelerator: wgpu (card; llvmpipe)");
    }

    #[test]
    fn the_processes_of_a_machine_take_its_devices_in_turn() {
        fn two() -> Found {
            let second = DeviceInfo::new(1, "card 2", DeviceType::DiscreteGpu);
            Ok(vec![card(), second])
        }
        let machine = machine(two, missing);
        let devices = |devices: &str, process| {
            let devices = devices.parse().unwrap();
            let choice = choose(&"cuda".into(), &devices, (process, 2), &machine);
            let ids = |c: Choice| c.devices.iter().map(|d| d.id).collect::<Vec<_>>();
            choice.map(ids).map_err(|e| e.to_string())
        };
        for wanted in ["auto", "all", "1", "0,1"] {
            assert_eq!(
                [devices(wanted, 0), devices(wanted, 1)],
                [Ok(vec![0]), Ok(vec![1])]
            );
        }
        assert_eq!(
            devices("2", 1),
            Err("`devices` is `2`, but each of the 2 processes on this machine needs 2, of 2; cuda \
                 has 0: card; 1: card 2"
                .into())
        );
    }

    #[test]
    fn a_processor_has_as_many_replicas_as_one_wants() {
        let machine = machine(missing, missing);
        let devices = |devices: &str| {
            let choice = choose(&"cpu".into(), &devices.parse().unwrap(), (0, 1), &machine);
            choice.map(|c| c.to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(devices("3"), Ok("accelerator: flex (3 x CPU)".into()));
        assert_eq!(devices("auto"), Ok("accelerator: flex (CPU)".into()));
        assert_eq!(
            devices("1025"),
            Err(
                "`devices` is `1025`, but a processor has at most 1024 replicas; flex has 0: CPU"
                    .into()
            )
        );
    }
}

use super::*;
use std::fs;
use tempfile::TempDir;

/// A machine of files: RAPL domains, the times of the process and `nvidia-smi`.
struct Machine {
    dir: TempDir,
    start: Instant,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
            start: Instant::now(),
        };
        fs::create_dir(machine.path("powercap")).unwrap();
        machine.cpu_time(500);
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A domain with its counter and where it starts over, in microjoules.
    fn domain(&self, id: &str, name: &str, counter: u64, range: &str) {
        fs::create_dir_all(self.path(&format!("powercap/{id}"))).unwrap();
        self.file(id, "name", &format!("{name}\n"));
        self.file(id, "max_energy_range_uj", &format!("{range}\n"));
        self.counter(id, counter);
    }

    fn counter(&self, id: &str, microjoules: u64) {
        self.file(id, "energy_uj", &format!("{microjoules}\n"));
    }

    fn file(&self, id: &str, name: &str, text: &str) {
        fs::write(self.path(&format!("powercap/{id}/{name}")), text).unwrap();
    }

    /// CPU time in hundredths of a second.
    fn cpu_time(&self, ticks: u64) {
        let stat = format!("1 (sh) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 100 0 0 20 0 1 0 1 0 0\n");
        fs::write(self.path("stat"), stat).unwrap();
    }

    fn meter(&self, gpus: &[&str]) -> EnergyMeter {
        let sources = EnergySources {
            powercap: self.path("powercap"),
            stat: self.path("stat"),
            nvidia_smi: self.path("nvidia-smi"),
            gpus: gpus.iter().map(|id| (*id).to_owned()).collect(),
        };
        EnergyMeter::new_at(sources, 0.0, self.start)
    }

    /// A reading that many seconds after the start.
    fn read(&self, meter: &mut EnergyMeter, seconds: u64) -> Reading {
        meter.read_at(self.start + Duration::from_secs(seconds))
    }

    /// A program in the place of `nvidia-smi`. It notes each time it is started in `started`.
    #[cfg(unix)]
    fn nvidia_smi(&self, script: &str) {
        // Written by another process: a program that this one has open for writing, in whichever
        // thread it starts another, cannot be run.
        let dir = self.dir.path().display();
        let text = format!("#!/bin/sh\ncd '{dir}'\necho \"$@\" >> started\n{script}\n");
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod +x \"$0\""])
            .arg(self.path("nvidia-smi"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), text.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success());
    }

    #[cfg(unix)]
    fn started(&self) -> usize {
        let started = fs::read_to_string(self.path("started"));
        started.unwrap_or_default().lines().count()
    }
}

/// Waits until `nvidia-smi` has ended, if it runs.
#[cfg(unix)]
fn settle(meter: &mut EnergyMeter) {
    if let Some(child) = meter.gpus.as_mut().and_then(|gpus| gpus.running.as_mut()) {
        child.wait().unwrap();
    }
}

fn reading(joules: f64, is_estimate: bool, source: &'static str) -> Reading {
    Reading {
        joules,
        is_estimate,
        source,
    }
}

#[test]
fn packages_are_counted_and_nothing_twice() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 1_000_000, "262143328850");
    machine.domain("intel-rapl:1", "package-1", 262_143_000_000, "262143328850");
    machine.domain("intel-rapl:2", "psys", 0, "262143328850");
    machine.domain("intel-rapl:3", "dram", 0, "262143328850");
    machine.domain("intel-rapl:0:0", "core", 0, "262143328850");
    machine.domain("intel-rapl:0:1", "package-9", 0, "262143328850");
    machine.domain("intel-rapl-mmio:0", "package-0", 0, "262143328850");
    machine.domain("intel-rapl", "package-7", 0, "262143328850");
    let mut meter = machine.meter(&[]);
    assert_eq!(machine.read(&mut meter, 0), reading(0.0, false, "RAPL"));
    for id in [
        "intel-rapl:2",
        "intel-rapl:3",
        "intel-rapl:0:0",
        "intel-rapl:0:1",
        "intel-rapl-mmio:0",
        "intel-rapl",
    ] {
        machine.counter(id, 77_000_000);
    }
    machine.cpu_time(90_000);
    machine.counter("intel-rapl:0", 3_500_000);
    // The second one starts over.
    machine.counter("intel-rapl:1", 671_150);
    assert_eq!(
        machine.read(&mut meter, 1),
        reading(2.5 + 1.0, false, "RAPL")
    );
    machine.counter("intel-rapl:1", 1_671_150);
    assert_eq!(machine.read(&mut meter, 2), reading(4.5, false, "RAPL"));
    assert_eq!(machine.read(&mut meter, 3), reading(4.5, false, "RAPL"));
    assert_eq!(meter.problems().count(), 0);
}

#[test]
fn a_resumed_run_goes_on() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    let sources = EnergySources {
        powercap: machine.path("powercap"),
        ..EnergySources::of_this_machine(Vec::new())
    };
    let mut meter = EnergyMeter::new(sources, 1234.5);
    machine.counter("intel-rapl:0", 500_000);
    assert_eq!(meter.read(), reading(1235.0, false, "RAPL"));
}

#[test]
fn dies_that_show_one_counter_count_once() {
    let machine = Machine::new();
    let range = "65532610987";
    machine.domain("intel-rapl:0", "package-0-die-0", 10_000_000, range);
    machine.domain("intel-rapl:1", "package-0-die-1", 10_000_900, range);
    machine.domain("intel-rapl:2", "package-1-die-0", 10_000_000, range);
    machine.domain("intel-rapl:3", "package-1-die-1", 90_000_000, range);
    let mut meter = machine.meter(&[]);
    for (id, counter) in [
        (0, 15_000_000),
        (1, 15_000_900),
        (2, 13_000_000),
        (3, 91_000_000),
    ] {
        machine.counter(&format!("intel-rapl:{id}"), counter);
    }
    assert_eq!(
        machine.read(&mut meter, 1),
        reading(5.0 + 3.0 + 1.0, false, "RAPL")
    );
}

#[test]
fn a_counter_that_starts_over_without_a_range() {
    for range in ["", "garbage", "5"] {
        let machine = Machine::new();
        machine.domain("intel-rapl:0", "package-0", 9_000_000, range);
        let mut meter = machine.meter(&[]);
        machine.counter("intel-rapl:0", 2_000_000);
        assert_eq!(
            machine.read(&mut meter, 1),
            reading(2.0, true, "RAPL"),
            "{range}"
        );
    }
}

#[test]
fn one_package_that_cannot_be_read_for_a_while() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    machine.domain("intel-rapl:1", "package-1", 0, "262143328850");
    let mut meter = machine.meter(&[]);
    machine.counter("intel-rapl:0", 1_000_000);
    machine.file("intel-rapl:1", "energy_uj", "garbage\n");
    assert_eq!(machine.read(&mut meter, 1), reading(1.0, true, "RAPL"));
    let path = machine.path("powercap/intel-rapl:1/energy_uj");
    let expected = format!("`{}` is no number but `garbage`", path.display());
    assert_eq!(meter.problems().collect::<Vec<_>>(), [expected]);
    machine.counter("intel-rapl:1", 4_000_000);
    assert_eq!(machine.read(&mut meter, 2), reading(5.0, false, "RAPL"));
}

#[test]
fn a_package_that_is_there_later_only_lacks_energy() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    machine.domain("intel-rapl:1", "package-1", 0, "262143328850");
    machine.file("intel-rapl:1", "energy_uj", "-1\n");
    let mut meter = machine.meter(&[]);
    machine.counter("intel-rapl:1", 4_000_000);
    assert_eq!(machine.read(&mut meter, 1), reading(0.0, true, "RAPL"));
    machine.counter("intel-rapl:1", 6_000_000);
    assert_eq!(machine.read(&mut meter, 2), reading(2.0, true, "RAPL"));
}

#[test]
fn cpu_time_fills_in_when_all_counters_are_gone() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    let mut meter = machine.meter(&[]);
    machine.counter("intel-rapl:0", 2_000_000);
    machine.cpu_time(600);
    assert_eq!(machine.read(&mut meter, 1), reading(2.0, false, "RAPL"));
    let counter = machine.path("powercap/intel-rapl:0/energy_uj");
    fs::remove_file(&counter).unwrap();
    machine.cpu_time(700);
    let expected = reading(2.0 + 3.76, true, "RAPL and CPU time");
    assert_eq!(machine.read(&mut meter, 2), expected);
    let problem = meter.problems().next().unwrap();
    let begin = format!("cannot read `{}`: ", counter.display());
    assert!(problem.starts_with(&begin), "{problem}");
    // What was used in between is in the estimate already.
    machine.counter("intel-rapl:0", 50_000_000);
    machine.cpu_time(800);
    let expected = reading(2.0 + 3.76 + 3.76, true, "RAPL and CPU time");
    assert_eq!(machine.read(&mut meter, 3), expected);
    machine.counter("intel-rapl:0", 51_000_000);
    machine.cpu_time(900);
    let expected = reading(2.0 + 3.76 + 3.76 + 1.0, true, "RAPL and CPU time");
    assert_eq!(machine.read(&mut meter, 4), expected);
}

#[test]
fn without_counters_cpu_time_is_an_estimate() {
    let machine = Machine::new();
    fs::remove_dir(machine.path("powercap")).unwrap();
    let mut meter = machine.meter(&[]);
    machine.cpu_time(1500);
    // 10 seconds of a thread.
    assert_eq!(
        machine.read(&mut meter, 1),
        reading(10.0 * 3.76, true, "CPU time")
    );
    let problem = meter.problems().next().unwrap();
    let powercap = machine.path("powercap");
    let begin = format!(
        "there is no energy counter of a processor in `{}`: ",
        powercap.display()
    );
    assert!(problem.starts_with(&begin), "{problem}");
    // Not a time that runs backwards.
    machine.cpu_time(100);
    assert_eq!(
        machine.read(&mut meter, 2),
        reading(10.0 * 3.76, true, "CPU time")
    );
}

#[test]
fn nothing_at_all() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "psys", 0, "262143328850");
    fs::remove_file(machine.path("stat")).unwrap();
    let mut meter = machine.meter(&["0"]);
    assert_eq!(machine.read(&mut meter, 100), reading(0.0, true, "none"));
    let problems: Vec<&str> = meter.problems().collect();
    assert!(
        problems[0].starts_with("there is no energy counter"),
        "{problems:?}"
    );
    let begin = format!("cannot start `{}`: ", machine.path("nvidia-smi").display());
    assert!(problems[1].starts_with(&begin), "{problems:?}");
}

#[cfg(unix)]
#[test]
fn counters_that_only_root_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    let counter = machine.path("powercap/intel-rapl:0/energy_uj");
    fs::set_permissions(&counter, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&counter).is_ok() {
        eprintln!("skipped: this user may read every file");
        return;
    }
    let mut meter = machine.meter(&[]);
    machine.cpu_time(600);
    assert_eq!(machine.read(&mut meter, 1), reading(3.76, true, "CPU time"));
    let problem = meter.problems().next().unwrap();
    let path = counter.display();
    let begin = format!("only root may read `{path}`; `chmod o+r {path}` lets others, too: ");
    assert!(problem.starts_with(&begin), "{problem}");
}

#[cfg(unix)]
#[test]
fn gpu_power_is_integrated_over_time() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    machine.nvidia_smi("cat watts");
    fs::write(machine.path("watts"), "100.5\n 49.50 \n").unwrap();
    let mut meter = machine.meter(&["0", "GPU-1a"]);
    settle(&mut meter);
    let source = "RAPL and nvidia-smi";
    // The first sample holds for the time before it.
    assert_eq!(machine.read(&mut meter, 4), reading(600.0, false, source));
    assert_eq!(machine.read(&mut meter, 9), reading(1350.0, false, source));
    assert_eq!(machine.started(), 1);
    fs::write(machine.path("watts"), "200\n100\n").unwrap();
    // Started at 10 s, and there for the next reading.
    assert_eq!(machine.read(&mut meter, 10), reading(1500.0, false, source));
    settle(&mut meter);
    machine.counter("intel-rapl:0", 7_000_000);
    assert_eq!(machine.read(&mut meter, 12), reading(2107.0, false, source));
    assert_eq!(machine.read(&mut meter, 19), reading(4207.0, false, source));
    let arguments = fs::read_to_string(machine.path("started")).unwrap();
    let expected = "-i 0,GPU-1a --query-gpu=power.draw --format=csv,noheader,nounits\n";
    assert_eq!(arguments, expected.repeat(2));
}

#[cfg(unix)]
#[test]
fn gpus_that_report_no_power() {
    let cases = [
        ("echo '[N/A]'", "exit status: 0, `[N/A]`"),
        ("echo 1; echo 2", "exit status: 0, `1; 2`"),
        ("echo nan", "exit status: 0, `nan`"),
        ("echo -1", "exit status: 0, `-1`"),
        ("true", "exit status: 0, ``"),
        ("printf '\\377'", "exit status: 0, ``"),
        ("echo 5; exit 6", "exit status: 6, `5`"),
        (
            "echo No devices were found; exit 6",
            "exit status: 6, `No devices were found`",
        ),
    ];
    for (script, expected) in cases {
        let machine = Machine::new();
        machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
        machine.nvidia_smi(script);
        let mut meter = machine.meter(&["3"]);
        settle(&mut meter);
        machine.counter("intel-rapl:0", 1_000_000);
        // Without the GPU's energy it is an estimate.
        assert_eq!(
            machine.read(&mut meter, 5),
            reading(1.0, true, "RAPL"),
            "{script}"
        );
        let name = machine.path("nvidia-smi");
        let expected = format!(
            "`{}` does not give the power of GPU 3: {expected}",
            name.display()
        );
        assert_eq!(meter.problems().collect::<Vec<_>>(), [expected]);
        // It is tried again, but not at once.
        assert_eq!(machine.started(), 1);
        machine.nvidia_smi("echo 10");
        machine.read(&mut meter, 10);
        settle(&mut meter);
        let expected = reading(1.0 + 110.0, false, "RAPL and nvidia-smi");
        assert_eq!(machine.read(&mut meter, 11), expected, "{script}");
    }
}

#[cfg(unix)]
#[test]
fn the_last_power_holds_while_there_is_no_new_one() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    machine.nvidia_smi("echo 10");
    let mut meter = machine.meter(&["0"]);
    settle(&mut meter);
    assert_eq!(machine.read(&mut meter, 1).joules, 10.0);
    machine.nvidia_smi("exit 1");
    machine.read(&mut meter, 10);
    settle(&mut meter);
    let expected = reading(200.0, true, "RAPL and nvidia-smi");
    assert_eq!(machine.read(&mut meter, 20), expected);
}

#[cfg(unix)]
#[test]
fn a_program_that_hangs_is_not_waited_for() {
    let machine = Machine::new();
    machine.domain("intel-rapl:0", "package-0", 0, "262143328850");
    // It has no child that would live on with its end of the pipe.
    machine.nvidia_smi("exec sleep 3600");
    let mut meter = machine.meter(&["0"]);
    assert_eq!(machine.read(&mut meter, 1), reading(0.0, true, "RAPL"));
    assert_eq!(machine.read(&mut meter, 59), reading(0.0, true, "RAPL"));
    assert_eq!(meter.problems().count(), 0);
    assert_eq!(machine.read(&mut meter, 60), reading(0.0, true, "RAPL"));
    let problem = meter.problems().next().unwrap();
    assert!(
        problem.ends_with("nvidia-smi` did not end within a minute"),
        "{problem}"
    );
    settle(&mut meter);
    machine.nvidia_smi("echo 10");
    machine.read(&mut meter, 61);
    settle(&mut meter);
    let expected = reading(620.0, false, "RAPL and nvidia-smi");
    assert_eq!(machine.read(&mut meter, 62), expected);
    // One that is dropped while it runs is ended.
    machine.nvidia_smi("exec sleep 3600");
    machine.read(&mut meter, 72);
    drop(meter);
}

#[test]
fn co2_by_intensity() {
    assert_eq!(CarbonIntensity::WORLD.grams(3.6e6), 458.0);
    assert_eq!(CarbonIntensity::new(50.0).unwrap().grams(1.8e6), 25.0);
    assert_eq!(CarbonIntensity::new(0.0).unwrap().grams(1e9), 0.0);
    for (wrong, shown) in [(-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let error = CarbonIntensity::new(wrong).unwrap_err();
        let expected = format!(
            "a carbon intensity of {shown} g/kWh cannot be; use a number from 0, such as 458 for \
             the world's average"
        );
        assert_eq!(error.to_string(), expected);
    }
}

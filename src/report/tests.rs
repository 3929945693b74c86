#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use super::charts::{Charts, Kind, mode, place};
use super::html::{duration, escape, size, utc};
use super::run::Run;
use super::*;
use crate::mode::Mode;
use serde_json::{Value, json};
use std::process::Command;
use tempfile::TempDir;

/// A run's folder with these files beside its settings.
fn run(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.toml"), "seed = 42\n").unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn read(files: &[(&str, &str)]) -> Run {
    Run::read(run(files).path()).unwrap()
}

/// A column's values as text, so that NaN equals NaN.
fn values(run: &Run, name: &str) -> String {
    let column = run.metrics.columns.iter().find(|c| c.name == name).unwrap();
    format!("{:?}", run.metrics.values(column).collect::<Vec<_>>())
}

/// The notes but the one on the missing `run.jsonl`.
fn notes(run: &Run) -> Vec<&str> {
    let notes = run.notes.iter().map(String::as_str);
    notes
        .filter(|note| !note.starts_with("`run.jsonl` is missing"))
        .collect()
}

#[test]
fn csv_is_read_exactly() {
    let text = "step,epoch,a,b\n1,0,0.30000000000000004,\n2,0,NaN,5e-324\n3,1,-inf,1\n";
    let run = read(&[("metrics.csv", text)]);
    assert_eq!(run.metrics.rows, [(1, 0), (2, 0), (3, 1)]);
    assert_eq!(
        values(&run, "a"),
        "[(1, 0.30000000000000004), (2, NaN), (3, -inf)]"
    );
    assert_eq!(values(&run, "b"), "[(2, 5e-324), (3, 1.0)]");
    assert!(notes(&run).is_empty(), "{:?}", run.notes);
}

#[test]
fn a_line_that_is_cut_short_is_left_out() {
    // 0.3904 was on its way to the disk as 0.39.
    let run = read(&[("metrics.csv", "step,epoch,a\n1,0,0.5\n2,0,0.39")]);
    assert_eq!(values(&run, "a"), "[(1, 0.5)]");
    let cut = "ends within a line, which is left out; the run may still be going on";
    assert_eq!(notes(&run), [format!("`metrics.csv` {cut}")]);

    let line = r#"{"step":1,"epoch":0,"time":1.5,"values":{"a":"NaN","b":0.1,"c":"-inf"}}"#;
    let run = read(&[("metrics.jsonl", &format!("{line}\n{}", &line[..40]))]);
    assert_eq!(
        (values(&run, "a"), values(&run, "b")),
        ("[(1, NaN)]".into(), "[(1, 0.1)]".into())
    );
    assert_eq!(notes(&run), [format!("`metrics.jsonl` {cut}")]);
}

#[test]
fn damaged_rows_are_counted_and_named() {
    let text = "step,epoch,a\n1,0,0.5\nx,0,1\n2,0\n3,0,abc\n4,0,2\n";
    let run = read(&[("metrics.csv", text)]);
    assert_eq!(values(&run, "a"), "[(1, 0.5), (4, 2.0)]");
    let note = "`metrics.csv` is damaged in 3 places, which are left out; \
                line 3: its cells do not fit the header";
    assert_eq!(notes(&run), [note]);

    let text = "{\"step\":1,\"values\":{\"a\":null,\"b\":2}}\nnonsense\n";
    let run = read(&[("metrics.jsonl", text)]);
    assert_eq!(values(&run, "b"), "[(1, 2.0)]");
    assert_eq!(notes(&run).len(), 2);
    assert!(
        run.notes.iter().any(|note| note.contains("line 2: ")),
        "{:?}",
        run.notes
    );

    let run = read(&[("metrics.csv", "loss\n1\n")]);
    assert_eq!(
        notes(&run)[0],
        "`metrics.csv` has no column `step`, and is not shown"
    );
    assert!(notes(&run)[1].contains("nothing is logged yet"));
}

#[test]
fn rows_come_by_step() {
    let text = "step,epoch,a,b\n3,0,30,\n1,0,10,1\n2,0,,2\n";
    let run = read(&[("metrics.csv", text)]);
    assert_eq!(values(&run, "a"), "[(1, 10.0), (3, 30.0)]");
    assert_eq!(values(&run, "b"), "[(1, 1.0), (2, 2.0)]");
    assert_eq!(
        notes(&run),
        ["`metrics` has rows that are not in order; they are sorted by step"]
    );
}

#[test]
fn epochs_are_counted_with_their_parts() {
    let epochs = |rows: &[(u64, u64)]| {
        let rows = rows
            .iter()
            .map(|(step, epoch)| format!("{step},{epoch},1\n"));
        let text = format!("step,epoch,a\n{}", rows.collect::<String>());
        read(&[("metrics.csv", &text)]).metrics.epochs()
    };
    // Two whole epochs of 75 steps, and one that goes on.
    let rows = [(50, 0), (75, 0), (100, 1), (150, 1), (165, 2)];
    assert_eq!(
        epochs(&rows),
        [50.0 / 75.0, 1.0, 1.0 + 25.0 / 75.0, 2.0, 2.2]
    );
    // Resumed elsewhere in the middle of epoch 4: it is taken to be as long as the next.
    assert_eq!(
        epochs(&[(350, 4), (400, 4), (500, 5), (550, 6)]),
        [4.5, 5.0, 6.0, 6.5]
    );
    assert_eq!(epochs(&[(0, 0)]), [0.0]);
}

#[test]
fn names_find_their_charts() {
    let of = |name| {
        let place = place(name);
        (place.chart, place.kind, place.has_parts, place.is_noisy)
    };
    for (name, chart, kind, has_parts, is_noisy) in [
        ("train/loss", "loss", Kind::Train, false, true),
        ("train/loss_epoch", "loss", Kind::Epoch, false, false),
        ("val/loss", "loss", Kind::Val, false, false),
        ("test/acc", "acc", Kind::Test, false, false),
        ("val/task/loss", "task/loss", Kind::Val, false, false),
        (
            "train/f1/class_3_epoch",
            "f1 by class",
            Kind::Epoch,
            true,
            false,
        ),
        (
            "val/m/target_0_predicted_1",
            "m by target and prediction",
            Kind::Val,
            true,
            false,
        ),
        ("train/grad_norm", "gradient norm", Kind::Other, true, true),
        (
            "train/grad_norm/encoder",
            "gradient norm",
            Kind::Other,
            true,
            true,
        ),
        ("train/grad_norms", "grad_norms", Kind::Train, false, true),
        ("train/loss_scale", "loss scale", Kind::Other, false, false),
        ("lr", "learning rate", Kind::Other, true, false),
        ("lr/head", "learning rate", Kind::Other, true, false),
        ("memory/device0_bytes", "memory", Kind::Other, true, false),
        (
            "throughput/tokens_per_second",
            "tokens per second",
            Kind::Other,
            false,
            true,
        ),
        ("energy/kwh", "energy, kwh", Kind::Other, false, false),
        ("gan/d_loss", "gan/d_loss", Kind::Other, false, false),
        ("train", "train", Kind::Other, false, false),
        ("val/", "val/", Kind::Other, false, false),
        ("train/_epoch", "_epoch", Kind::Train, false, true),
    ] {
        assert_eq!(
            of(name),
            (chart.to_owned(), kind, has_parts, is_noisy),
            "{name}"
        );
    }
    assert_eq!(mode("val/loss", None), Some(Mode::Min));
    assert_eq!(mode("train/top_acc_epoch", None), Some(Mode::Max));
    assert_eq!(mode("val/f1/class_0", None), Some(Mode::Max));
    assert_eq!(mode("train/loss_scale", None), None);
    assert_eq!(mode("val/x", Some("max:val/x")), Some(Mode::Max));
    assert_eq!(mode("val/loss", Some("max:val/loss")), Some(Mode::Max));
}

#[test]
fn charts_hold_what_was_logged() {
    let one = "step,epoch,lr,odd,train/loss,val/loss\n10,0,0.1,1,0.30000000000000004,\n\
               20,0,0.2,2,NaN,inf\n";
    let two = "step,epoch,val/loss\n5,0,1e-310\n";
    let mut runs = vec![read(&[("metrics.csv", one)]), read(&[("metrics.csv", two)])];
    (runs[0].name, runs[1].name) = ("</script>".into(), "b&".into());
    let json = Charts::new(&runs).to_json().unwrap();
    assert!(!json.contains(['<', '>', '&']), "{json}");
    let data: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(data["runs"], json!(["</script>", "b&"]));
    // `lr`, `odd` and `train/loss` share their steps.
    assert_eq!(
        data["xs"],
        json!([
            {"step": [10, 20], "epoch": [0.5, 1.0]},
            {"step": [20], "epoch": [1.0]},
            {"step": [5], "epoch": [1.0]},
        ])
    );
    let charts = data["charts"].as_array().unwrap();
    let titles: Vec<_> = charts.iter().map(|chart| &chart["title"]).collect();
    assert_eq!(titles, ["loss", "learning rate", "odd"]);
    let series = |name, kind, run, x, is_noisy, y| {
        json!({
            "run": run, "name": name, "kind": kind, "part": 0, "is_noisy": is_noisy, "x": x, "y": y
        })
    };
    assert_eq!(
        charts[0]["series"],
        json!([
            series(
                "train/loss",
                "train",
                0,
                0,
                true,
                json!([0.30000000000000004, "NaN"])
            ),
            series("val/loss", "val", 0, 1, false, json!(["inf"])),
            series("val/loss", "val", 1, 2, false, json!([1e-310])),
        ])
    );
}

#[test]
fn names_from_files_never_become_html() {
    let image = "<img src=x onerror=alert(1)>";
    let script = "val/</script><script>alert(1)</script>";
    let metrics = format!("step,epoch,{image},{script}\n1,0,1,2\n");
    let dir = run(&[
        ("metrics.csv", &metrics),
        ("config.toml", "run_dir = \"a\\\"b'</dd><c>\"\n"),
        (
            "run.jsonl",
            "{\"command\":[\"<i>\"],\"git\":\"<i>\",\"slurm_job\":\"<i>\"}\n",
        ),
        ("test.json", "{\"<i>\":\"<i>\"}"),
        ("profile.json", PROFILE),
        ("checkpoints/<i>/manifest.json", "<i>"),
    ]);
    for runs in [
        vec![dir.path().into()],
        vec![dir.path().into(), dir.path().into()],
    ] {
        let page = report(&runs).unwrap();
        assert!(!page.contains("<img") && !page.contains("<c>") && !page.contains("<i>"));
        assert_eq!(page.matches("<script").count(), 2);
        assert_eq!(page.matches("</script").count(), 2);
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
        assert!(page.contains("a\\&quot;b&#39;&lt;/dd&gt;&lt;c&gt;"));
    }
}

#[test]
fn files_that_are_cut_anywhere_give_a_report() {
    let state = state("runs/v/checkpoints/epoch=1-step=8");
    let manifest = manifest(&[("state.json", state.len())]);
    let files = [
        ("config.toml", "seed = 42\nmonitor = \"max:val/acc\"\n"),
        ("run.jsonl", START),
        ("metrics.csv", "step,epoch,\"val/acc\"\n4,0,0.5\n8,1,NaN\n"),
        ("profile.json", PROFILE),
        ("test.json", "{\"test/acc\": 0.5}"),
        ("checkpoints/epoch=1-step=8/manifest.json", &manifest),
        ("checkpoints/epoch=1-step=8/state.json", &state),
    ];
    assert!(read(&files).notes.is_empty(), "{:?}", read(&files).notes);
    for (index, (name, text)) in files.iter().enumerate() {
        for length in 0..text.len() {
            let mut files = files;
            files[index].1 = &text[..length];
            let dir = run(&files);
            let page = report(&[dir.path().into()]).unwrap();
            // A line may be whole by chance, or the file empty, but JSON is damaged when it is cut.
            if name.ends_with(".json") {
                assert!(page.contains("is damaged: "), "{name} cut at {length}");
            }
        }
        let dir = run(&files);
        fs::write(dir.path().join(name), [0xff, 0xfe, 0, b'\n']).unwrap();
        let page = report(&[dir.path().into()]).unwrap();
        assert!(page.contains("id=\"notes\""), "{name}");
    }
}

#[test]
fn checkpoints_show_their_size_and_place() {
    let state = state("/elsewhere/checkpoints/epoch=1-step=8");
    let manifest = manifest(&[("state.json", state.len()), ("model.safetensors", 3)]);
    let dir = run(&[
        ("config.toml", "monitor = \"max:val/acc\"\n"),
        ("checkpoints/epoch=1-step=8/manifest.json", &manifest),
        ("checkpoints/epoch=1-step=8/state.json", &state),
        ("checkpoints/epoch=1-step=8/model.safetensors", "abc"),
        ("checkpoints/broken/manifest.json", &manifest),
        ("checkpoints/broken/state.json", &state),
        ("checkpoints/broken/model.safetensors", "ab"),
        ("checkpoints/.hidden.tmp/manifest.json", ""),
        ("checkpoints/last/manifest.json", ""),
    ]);
    let run = Run::read(dir.path()).unwrap();
    let [broken, whole] = run.checkpoints.as_slice() else {
        panic!("{:?}", run.checkpoints);
    };
    assert_eq!(
        (whole.step, whole.epoch, whole.bytes),
        (8, 1, state.len() as u64 + 3)
    );
    assert_eq!(whole.metrics[0], ("val/acc".to_owned(), 0.91));
    assert_eq!(
        (whole.elapsed, whole.is_best, &whole.damage),
        (Some(90.5), true, &None)
    );
    let damage = "`model.safetensors` has 2 bytes, not 3";
    assert_eq!(broken.damage.as_deref(), Some(damage));
    assert!(
        run.notes
            .contains(&format!("`checkpoints/broken` is damaged: {damage}"))
    );
    assert_eq!(
        run.settings.last().unwrap(),
        &("hyper_parameters.lr".into(), "0.001".into())
    );
    let page = report(&[dir.path().into()]).unwrap();
    assert!(page.contains("epoch=1-step=8 <span class=\"badge\">best</span>"));
    assert!(
        page.contains("<dd>1 min 30 s <small>up to step 8</small></dd>"),
        "{page}"
    );
}

#[test]
fn runs_are_compared() {
    let runs = ["0.5,0.25", "0.125,0.75"].map(|values| {
        let (first, last) = values.split_once(',').unwrap();
        let metrics = format!("step,epoch,val/loss\n1,0,{first}\n2,0,{last}\n");
        run(&[
            ("metrics.csv", &metrics),
            ("config.toml", &format!("seed = 1\nlr = {first}\n")),
        ])
    });
    let page = report(&runs.each_ref().map(|run| run.path().to_path_buf())).unwrap();
    let best = "<data value=\"0.75\" title=\"0.75\">0.7500</data><br><small class=\"best\">lowest \
                <data value=\"0.125\" title=\"0.125\">0.1250</data>";
    assert!(page.contains(best), "{page}");
    assert_eq!(page.matches("<small class=\"best\">").count(), 1);
    let row = "<th scope=\"row\">lr</th><td>0.5</td><td>0.125</td>";
    assert!(page.contains(row), "{page}");
    assert!(page.contains("The same in all runs: 1</summary>"), "{page}");
}

#[test]
fn starts_say_what_changed() {
    let again = START
        .replace("steps\":null", "steps\":8")
        .replace("\"train\"", "\"it's\"");
    let dir = run(&[("run.jsonl", &format!("{START}{again}"))]);
    let page = report(&[dir.path().into()]).unwrap();
    assert!(page.contains("<dd>max_steps null → 8</dd>"), "{page}");
    assert!(page.contains("&#39;it&#39;\\&#39;&#39;s&#39;"), "{page}");
    assert!(page.contains("<dt>resumed</dt><dd>once</dd>"));
    assert!(page.contains("<dt>started</dt><dd>2026-11-30 12:34:35 UTC</dd>"));
}

#[test]
fn what_is_no_run_is_refused() {
    let message = |runs: &[PathBuf]| {
        let error = report(runs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    };
    assert!(message(&[]).starts_with("there is no run to report on"));
    assert!(message(&["/nowhere".into()]).starts_with("`/nowhere` is no folder; use a run's"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    let no_run = format!("`{path}` is not a run's folder: it has no `config.toml`");
    assert_eq!(message(&[dir.path().into()]), no_run);
    fs::create_dir(dir.path().join("version_0")).unwrap();
    fs::write(dir.path().join("version_0/config.toml"), "").unwrap();
    let hint = format!("{no_run}; use one in it, such as `{path}/version_0`");
    assert_eq!(message(&[dir.path().into()]), hint);
}

#[test]
fn a_report_is_written_as_a_whole() {
    let dir = run(&[("metrics.csv", "step,epoch,a\n1,0,1\n")]);
    let runs = [dir.path().to_path_buf()];
    let path = write_report(&runs, None).unwrap();
    assert_eq!(path, dir.path().join("report.html"));
    fs::write(&path, "old").unwrap();
    write_report(&runs, None).unwrap();
    assert!(fs::read_to_string(&path).unwrap().ends_with("</html>\n"));
    let names = || fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names(), 3);

    let error = write_report(&runs, Some(dir.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("is a folder; give a file's path for the report"),
        "{error}"
    );
    let missing = dir.path().join("no/report.html");
    let error = write_report(&runs, Some(&missing)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(names(), 3);
}

#[test]
fn runs_have_distinct_names() {
    let root = tempfile::tempdir().unwrap();
    let paths = ["a/version_0", "b/version_0", "b/version_1", "b/version_0"];
    let read = paths.map(|path| {
        fs::create_dir_all(root.path().join(path)).unwrap();
        fs::write(root.path().join(path).join("config.toml"), "").unwrap();
        Run::read(&root.path().join(path)).unwrap()
    });
    let mut runs = Vec::from(read);
    name(&mut runs);
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(
        names,
        ["a/version_0", "version_0 (1)", "version_1", "version_0 (2)"]
    );
}

#[test]
fn values_are_written_for_people() {
    assert_eq!(
        escape("<a href='x'>\"&"),
        "&lt;a href=&#39;x&#39;&gt;&quot;&amp;"
    );
    assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
    assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
    assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
    assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00 UTC");
    assert!(utc(u64::MAX).ends_with("UTC"));
    let texts = [0.25, 59.0, 200.0, 3780.0, 100_000.0].map(duration);
    assert_eq!(
        texts,
        ["0.2500 s", "59 s", "3 min 20 s", "1 h 3 min", "1 d 3 h"]
    );
    let texts = [0, 1023, 1536, 6_379_619, 1 << 50].map(size);
    assert_eq!(
        texts,
        ["0 B", "1023 B", "1.500 KiB", "6.084 MiB", "1024 TiB"]
    );
}

#[test]
fn colours_have_enough_contrast() {
    // https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio
    let luminance = |colour: &str| {
        let part = |at: usize| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            match part <= 0.03928 {
                true => part / 12.92,
                false => ((part + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    };
    let css = include_str!("report.css");
    let (light, dark) = css
        .split_once("@media screen and (prefers-color-scheme: dark)")
        .unwrap();
    for scheme in [light, dark] {
        let colour = |name: &str| {
            let (_, rest) = scheme.split_once(&format!("--{name}: ")).unwrap();
            luminance(&rest[..7])
        };
        let contrast = |a: &str, b: &str| {
            let (a, b) = (colour(a), colour(b));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        for line in 0..8 {
            let found = contrast(&format!("c{line}"), "card");
            assert!(found >= 3.0, "c{line}: {found}");
        }
        for text in ["text", "soft", "accent"] {
            for back in ["card", "page"] {
                let found = contrast(text, back);
                assert!(found >= 4.5, "{text} on {back}: {found}");
            }
        }
        assert!(contrast("warn", "warn-back") >= 4.5);
    }
}

const START: &str = "{\"started\":1796042075,\"firebox\":\"0.1.0\",\"burn\":\"0.21.0\",\
     \"command\":[\"train\"],\"git\":null,\"slurm_job\":null,\"resumed_from\":null,\
     \"config\":{\"max_steps\":null}}\n";

const PROFILE: &str = "{\"wall_seconds\": 2.5, \"phases\": [{\"name\": \"<i>\", \"count\": 3, \
     \"total_seconds\": 1.5, \"share\": 0.6, \"mean_ms\": 500.0, \"p50_ms\": 1e-5, \"p95_ms\": 2}, \
     {\"name\": \"load\", \"count\": 3, \"total_seconds\": 1.5, \"share\": null, \"mean_ms\": 500.0, \
     \"p50_ms\": 500.0, \"p95_ms\": 500.0}]}";

fn state(best: &str) -> String {
    let state = json!({
        "progress": {"epoch": 1, "global_step": 8},
        "position": {"elapsed": 90.5},
        "metrics": [["val/acc", 0.91], ["val/loss", "NaN"]],
        "hyper_parameters": {"lr": 0.001},
        "records": {"kept": {}, "removed": [], "best": best},
    });
    state.to_string()
}

fn manifest(files: &[(&str, usize)]) -> String {
    let entry =
        |(name, bytes): &(&str, usize)| ((*name).to_owned(), json!({"bytes": bytes, "xxh3": "0"}));
    let files: serde_json::Map<String, Value> = files.iter().map(entry).collect();
    json!({"format": 1, "firebox": "0.1.0", "burn": "0.21.0", "epoch": 1, "step": 8, "files": files})
        .to_string()
}

mod browser;

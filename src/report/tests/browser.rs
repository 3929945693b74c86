//! The charts as a real browser draws them.

use super::*;

/// Chromium, under one of its names.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let on_path = std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.is_file());
    std::env::var_os("CHROMIUM").map(PathBuf::from).or(on_path)
}

/// What Chromium prints for a page, in a light or dark scheme.
fn browse(page: &Path, scheme: &str, arguments: &[&str]) -> Option<String> {
    let Some(program) = chromium() else {
        eprintln!("skipped: no Chromium");
        return None;
    };
    let profile = tempfile::tempdir().unwrap();
    let preferred = if scheme == "dark" { 0 } else { 1 };
    let output = Command::new(program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--no-first-run",
            "--window-size=1280,1600",
            "--virtual-time-budget=10000",
        ])
        .arg(format!("--blink-settings=preferredColorScheme={preferred}"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Chromium failed: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// A report's page with a script at its end, whose result it gives.
fn facts(runs: &[&TempDir], scheme: &str, script: &str) -> Option<Value> {
    let runs: Vec<PathBuf> = runs.iter().map(|run| run.path().into()).collect();
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    // Single quotes keep the result readable in the printed document, which escapes double ones.
    let script = format!(
        "<script>{{ const facts = (() => {{ {TOOLS} {script} }})(); const pre = \
         document.createElement('pre'); pre.id = 'facts'; pre.textContent = \
         encodeURIComponent(JSON.stringify(facts)); document.body.append(pre); }}</script>"
    );
    fs::write(&page, report(&runs).unwrap() + &script).unwrap();
    let dom = browse(&page, scheme, &["--dump-dom"])?;
    let (root, _) = dom.split_once("<head").unwrap();
    assert!(
        !root.contains("data-error") && !root.contains("data-hacked"),
        "{root}"
    );
    let (_, rest) = dom
        .split_once("<pre id=\"facts\">")
        .unwrap_or_else(|| panic!("{dom}"));
    let text = rest.split("</pre>").next().unwrap();
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap().bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].bytes());
    }
    Some(serde_json::from_slice(&bytes).unwrap())
}

const TOOLS: &str = "
    const all = (selector, root = document) => [...root.querySelectorAll(selector)];
    const figures = all('figure');
    const series = (figure) => all('g.series', figure).map((g) =>
        [g.dataset.name, Number(g.dataset.run), Number(g.dataset.points), all('path.line', g).length]);
    const plot = (figure) => figure.querySelector('svg.plot');
    const vertices = (path) => path.getAttribute('d').split(/[ML]/).filter(Boolean).length;
    const moves = (path) => path.getAttribute('d').split('M').length - 1;
    const axis = (figure, anchor) => all(`text[text-anchor=${anchor}]`, plot(figure)).map((t) => t.textContent);
    const hover = (figure, x) => {
        const box = plot(figure).getBoundingClientRect();
        plot(figure).dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + x * box.width }));
        return figure.querySelector('.tip').innerText.split('\\n').map((line) => line.trim()).filter(Boolean);
    };";

#[test]
fn a_chart_for_each_quantity() {
    let metrics = "step,epoch,train/loss,train/acc,lr,val/loss,val/acc,train/loss_epoch\n\
                   10,0,2.0,0.90625,0.1,,,\n\
                   20,0,NaN,0.5,0.1,,,\n\
                   30,0,1.0,0.75,0.1,,,\n\
                   30,0,,,,1.5,0.6,\n\
                   30,0,,,,,,1.6\n\
                   40,1,0.5,0.90625,0.05,,,\n";
    let dir = run(&[("metrics.csv", metrics)]);
    let script = "
        const before = figures.map((figure) => [figure.dataset.title, series(figure)]);
        const loss = figures[0];
        const path = all('path.line', loss)[0];
        const gaps = [moves(path), loss.querySelector('p').textContent, all('path.miss', loss).length];
        const legend = all('.legend small').map((s) => s.textContent);
        const tip = hover(loss, 0.99);
        all('header button', loss)[0].click();
        const log = axis(loss, 'end');
        all('.legend button', loss)[1].click();
        const hidden = [series(loss).map((s) => s[0]), loss.querySelector('p').textContent];
        all('input[name=x]')[1].click();
        const epochs = [axis(loss, 'middle'), hover(loss, 0.99)[0]];
        plot(loss).dispatchEvent(new KeyboardEvent('keydown', { key: 'Home' }));
        plot(loss).dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
        const key = loss.querySelector('.tip strong').textContent;
        const back = getComputedStyle(document.body).backgroundColor;
        return { before, gaps, legend, tip, log, hidden, epochs, key, back };";
    let Some(light) = facts(&[&dir], "light", script) else {
        return;
    };
    assert_eq!(
        light["before"],
        json!([
            [
                "loss",
                [
                    ["train/loss", 0, 3, 1],
                    ["val/loss", 0, 1, 1],
                    ["train/loss_epoch", 0, 1, 1],
                ]
            ],
            ["acc", [["train/acc", 0, 4, 1], ["val/acc", 0, 1, 1]]],
            ["learning rate", [["lr", 0, 4, 1]]],
        ])
    );
    let gap = "1 of 4 values of train/loss are NaN or infinite (gaps, marked at the axis).";
    assert_eq!(light["gaps"], json!([2, gap, 1]));
    // As `number` in table.rs writes them: 0.90625 goes to the even digit.
    let last = ["0.5000", "1.500", "1.600", "0.9062", "0.6000", "0.05000"];
    assert_eq!(light["legend"], json!(last));
    let tip = light["tip"].to_string();
    assert!(
        tip.contains("step 40") && tip.contains("0.5000") && tip.contains("at 30"),
        "{tip}"
    );
    assert_eq!(light["log"], json!(["0.5", "0.7", "1", "2"]));
    let hidden = format!("{gap} 1 of 3 series are hidden; their names show them.");
    assert_eq!(
        light["hidden"],
        json!([["train/loss", "train/loss_epoch"], hidden])
    );
    let ticks = ["0.4", "0.6", "0.8", "1.0", "1.2", "epochs"];
    assert_eq!(light["epochs"], json!([ticks, "epochs 1.333"]));
    assert_eq!(light["key"], json!("epochs 0.6667"));
    assert_eq!(light["back"], json!("rgb(244, 245, 247)"));
    let dark = facts(&[&dir], "dark", script).unwrap();
    assert_eq!(dark["back"], json!("rgb(18, 20, 25)"));
    assert_eq!(dark["before"], light["before"]);
}

#[test]
fn long_lines_are_thinned_and_spikes_stay() {
    let mut metrics = String::from("step,epoch,train/loss\n");
    for step in 0..20_000 {
        let value = match step {
            12_345 => 100.0,
            _ => f64::from(step % 7),
        };
        metrics += &format!("{step},0,{value}\n");
    }
    let dir = run(&[("metrics.csv", &metrics)]);
    let script = "
        const [raw, soft] = all('path.line');
        const top = Math.min(...raw.getAttribute('d').match(/,[0-9.]+/g).map((y) => Number(y.slice(1))));
        all('input[type=range]').forEach((s) => { s.value = 0; s.dispatchEvent(new Event('input')); });
        return { series: series(figures[0]), raw: vertices(raw), soft: vertices(soft), top,
            width: plot(figures[0]).clientWidth, dots: all('circle.dot').length };";
    let Some(found) = facts(&[&dir], "light", script) else {
        return;
    };
    // Without smoothing there is one line.
    assert_eq!(found["series"], json!([["train/loss", 0, 20_000, 1]]));
    let most = found["width"].as_u64().unwrap() * 4;
    for line in ["raw", "soft"] {
        let vertices = found[line].as_u64().unwrap();
        assert!(
            (1000..most).contains(&vertices),
            "{line}: {vertices} of at most {most}"
        );
    }
    // The plot is 212 pixels high from 10 down; the values are 0 to 100, with 5 % above.
    let top = 10.0 + 212.0 * (1.0 - 100.0 / 105.0);
    assert!(
        (found["top"].as_f64().unwrap() - top).abs() < 0.06,
        "{found}"
    );
    assert_eq!(found["dots"], json!(0));
}

#[test]
fn several_runs_one_row_and_none() {
    let rows = |n: u32| {
        let rows = (1..=n).map(|step| format!("{step},0,{},{}\n", 1.0 / f64::from(step), step));
        format!(
            "step,epoch,train/loss,val/loss\n{}",
            rows.collect::<String>()
        )
    };
    let dirs = [120, 80, 1].map(|n| run(&[("metrics.csv", &rows(n))]));
    let empty = run(&[]);
    let script = "
        const before = figures.map(series);
        const style = all('g.series').map((g) => [g.style.color, all('path.line', g).at(-1).getAttribute('stroke-dasharray')]);
        all('.tools button')[0].click();
        return { before, style, after: figures.map(series), dots: all('circle.dot').length };";
    let Some(found) = facts(&[&dirs[0], &dirs[1], &dirs[2], &empty], "light", script) else {
        return;
    };
    let of_run = |run: u32, points: u32, smooth: u32| {
        [
            json!(["train/loss", run, points, smooth]),
            json!(["val/loss", run, points, 1]),
        ]
    };
    let after = [of_run(1, 80, 2), of_run(2, 1, 1)].concat();
    let before = [of_run(0, 120, 2).to_vec(), after.clone()].concat();
    assert_eq!(found["before"], json!([before]));
    assert_eq!(found["after"], json!([after]));
    let style = |run: u32, dash: &str| json!([format!("var(--c{run})"), dash]);
    let style: Vec<_> = (0..3)
        .flat_map(|run| [style(run, ""), style(run, "7 4")])
        .collect();
    assert_eq!(found["style"], json!(style));
    // A single row is two dots.
    assert_eq!(found["dots"], json!(2));

    let script = "return document.getElementById('charts').innerText;";
    let text = facts(&[&empty], "light", script).unwrap().to_string();
    assert!(text.contains("No values yet."), "{text}");
}

#[test]
fn hostile_names_are_text_in_the_charts() {
    let attack = "onerror=document.documentElement.dataset.hacked=1>";
    let script = "</script><script>document.documentElement.dataset.hacked=1</script>";
    let metrics = format!("step,epoch,<img src=x {attack},val/{script}\n1,0,1,2\n2,0,3,4\n");
    let config = format!("run_dir = \"'\\\"><img src=x {attack}\"\n");
    let dir = run(&[("metrics.csv", &metrics), ("config.toml", &config)]);
    let script = "
        figures.forEach((figure) => hover(figure, 0.5));
        return [all('img').length, figures.map((figure) => figure.dataset.title), all('.settings dd')[0].textContent];";
    let Some(found) = facts(&[&dir], "light", script) else {
        return;
    };
    let val = "</script><script>document.documentElement.dataset.hacked=1</script>";
    assert_eq!(found[0], json!(0));
    assert_eq!(found[1], json!([val, format!("<img src=x {attack}")]));
    assert_eq!(found[2], json!(format!("\"'\\\"><img src=x {attack}\"")));
}

#[test]
fn both_schemes_can_be_looked_at() {
    let metrics = "step,epoch,train/loss\n1,0,1\n2,0,0.5\n3,0,0.25\n";
    let dir = run(&[("metrics.csv", metrics)]);
    let page = write_report(&[dir.path().into()], None).unwrap();
    let picture = |scheme: &str| {
        let file = dir.path().join(format!("{scheme}.png"));
        let argument = format!("--screenshot={}", file.display());
        browse(&page, scheme, &[&argument])?;
        Some(fs::read(file).unwrap())
    };
    let (Some(light), Some(dark)) = (picture("light"), picture("dark")) else {
        return;
    };
    for picture in [&light, &dark] {
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000);
    }
    assert_ne!(light, dark);
}

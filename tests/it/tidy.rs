//! Rules of the repository that the compiler does not know.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules, top to bottom. A module uses lower rows alone, not its own row and none above.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["launch", "doctor"],
    &["trainer"],
    &["loops"],
    &["checkpoint"],
    &["callback"],
    &["fabric"],
    &["precision", "logger"],
    &["testing"],
    &["distributed"],
    &["data", "burn_train"],
    // A model names its optimizers, and optimizers name the model they step: one layer of two.
    &["module", "optim"],
    &["metric", "nn"],
    &[
        "accelerators",
        "config",
        "control",
        "monitor",
        "panics",
        "parameters",
        "profiler",
        "report",
        "signals",
        "slurm",
    ],
    &["files"],
    &["error", "exact", "mode", "output", "progress", "table"],
];

const ONE_LAYER: [&str; 2] = ["module", "optim"];

const MAX_LINES: usize = 600;

#[test]
fn modules_use_lower_layers_alone() {
    let row = |module: &str| {
        let row = LAYERS.iter().position(|row| row.contains(&module));
        row.unwrap_or_else(|| panic!("`{module}` is in no layer; give it one in LAYERS"))
    };
    let mut wrong = Vec::new();
    for file in sources("src") {
        let module = top_module(&file);
        if module == "lib" {
            continue;
        }
        for used in used_modules(&program_text(&file)) {
            let together = ONE_LAYER.contains(&module.as_str()) && ONE_LAYER.contains(&&*used);
            if used != module && !together && row(&used) <= row(&module) {
                wrong.push(format!("{}: {module} uses {used}", shown(&file)));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn code_names_modules_and_not_the_root() {
    // `crate::Error` hides which module is used; the layers could not be checked.
    let mut wrong = Vec::new();
    for file in sources("src") {
        for (number, line) in program_text(&file).lines().enumerate() {
            let after = line.split("crate::").skip(1);
            let is_root = |rest: &str| rest.starts_with(char::is_uppercase);
            if after.into_iter().any(is_root) {
                wrong.push(format!("{}:{}: {line}", shown(&file), number + 1));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_library_prints_without_panicking() {
    // `println!` and `eprintln!` panic where nobody reads any more.
    let mut wrong = Vec::new();
    for file in sources("src") {
        let is_library = !file.starts_with(root().join("src/bin"));
        if !is_library || file.ends_with("checkpoint/hostile.rs") {
            continue;
        }
        for (number, line) in program_text(&file).lines().enumerate() {
            if line.contains("print!(") || line.contains("println!(") {
                wrong.push(format!("{}:{}: {line}", shown(&file), number + 1));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_source_file_is_a_module() {
    let mut wrong = Vec::new();
    for file in sources("src") {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let folder = file.parent().unwrap();
        let (name, parent) = match name {
            "lib" => continue,
            // A program of its own, which the manifest names.
            "main" if folder.ends_with("src/bin/firebox") => continue,
            "mod" => (
                folder.file_name().unwrap().to_str().unwrap(),
                folder.parent().unwrap(),
            ),
            name => (name, folder),
        };
        let declared = [
            parent.join("mod.rs"),
            parent.join("lib.rs"),
            parent.join("main.rs"),
            parent.with_extension("rs"),
        ]
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|text| {
            let (declared, path) = (format!("mod {name};"), format!("path = \"{name}.rs\""));
            let mut lines = text.lines();
            lines.any(|line| line.ends_with(&declared) || line.contains(&path))
        });
        if !declared {
            wrong.push(format!("{} is declared nowhere", shown(&file)));
        }
    }
    assert_none(&wrong);
}

#[test]
fn no_source_file_is_long() {
    let mut wrong = Vec::new();
    for file in ["src", "backends", "examples", "tests", "benches"]
        .iter()
        .flat_map(|d| sources(d))
    {
        let lines = read(&file).lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{} has {lines} lines", shown(&file)));
        }
    }
    assert_none(&wrong);
}

#[test]
fn loops_name_no_callback_and_no_logger() {
    // What stands in a file of its own is one of many; the traits stand in `mod.rs`.
    let modules = ["src/callback/mod.rs", "src/logger/mod.rs"].map(|f| read(&root().join(f)));
    let lines = modules.iter().flat_map(|module| module.lines());
    let names = lines
        .filter_map(|line| line.strip_prefix("pub use "))
        // What callbacks see is given to them by the loops.
        .filter(|line| !line.starts_with("context::"))
        .flat_map(words);
    let concrete: BTreeSet<_> = names
        .filter(|w| w.starts_with(char::is_uppercase))
        .collect();
    assert!(concrete.contains("EarlyStopping") && concrete.contains("CsvLogger"));
    let mut wrong = Vec::new();
    for file in sources("src/loops") {
        let text = program_text(&file);
        let named = words(&text).filter(|word| concrete.contains(word));
        wrong.extend(named.map(|name| format!("{} names {name}", shown(&file))));
    }
    assert_none(&wrong);
}

#[test]
fn every_example_is_listed() {
    let list = read(&root().join("examples/README.md"));
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let is_example =
            path.join("main.rs").exists() || path.extension().is_some_and(|e| e == "rs");
        let name = path.file_stem().unwrap().to_str().unwrap();
        if is_example && !list.contains(&format!("| [`{name}`](")) {
            wrong.push(format!("examples/README.md does not list {name}"));
        }
    }
    assert_none(&wrong);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for file in text_files()
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "md"))
    {
        for link in read(&file).split("](").skip(1) {
            let link = link.split([')', '#', ' ']).next().unwrap_or_default();
            let is_outside = link.is_empty() || link.contains("://") || link.starts_with("mailto:");
            if !is_outside && !file.parent().unwrap().join(link).exists() {
                wrong.push(format!("{} links to {link}", shown(&file)));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn texts_speak_of_the_project_alone() {
    // In two parts each, so that this file has none of them.
    let forbidden = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/tm", "p/w"),
        concat!("/ho", "me/"),
        concat!("issue ", "#"),
    ];
    let mut wrong = Vec::new();
    for file in text_files() {
        for (number, line) in read(&file).lines().enumerate() {
            let line = line.to_lowercase();
            let found = forbidden.iter().filter(|word| line.contains(**word));
            wrong.extend(found.map(|word| format!("{}:{}: `{word}`", shown(&file), number + 1)));
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_feature_says_what_it_is_for() {
    let manifests = text_files()
        .into_iter()
        .filter(|f| f.ends_with("Cargo.toml"));
    let mut wrong = Vec::new();
    for file in manifests {
        let text = read(&file);
        let Some((_, features)) = text.split_once("\n[features]\n") else {
            continue;
        };
        let features = features.split("\n[").next().unwrap_or_default();
        let mut above = "";
        for line in features.lines() {
            let feature = line.split_once(" = ").map(|(name, _)| name);
            match feature {
                // A choice among the features, and none itself.
                None | Some("default") => {}
                Some(name) if above.starts_with("# ") && !name.starts_with('#') => {}
                Some(name) if name.starts_with('#') => {}
                Some(name) => wrong.push(format!("{}: `{name}` has no comment", shown(&file))),
            }
            above = line;
        }
    }
    assert_none(&wrong);
}

#[test]
fn documents_of_a_release_fit_it() {
    let manifest = read(&root().join("Cargo.toml"));
    let (_, version) = manifest.split_once("\nversion = \"").unwrap();
    let version = version.split('"').next().unwrap();
    let mut wrong = Vec::new();
    // Those that are not there yet are left to the release.
    if let Ok(changes) = fs::read_to_string(root().join("CHANGELOG.md"))
        && !changes.contains(version)
        && !changes.to_lowercase().contains("unreleased")
    {
        wrong.push(format!("CHANGELOG.md says nothing about {version}"));
    }
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| root().join(name).exists());
    if licences.contains(&true) && licences.contains(&false) {
        wrong.push("the licence is MIT or Apache-2.0, but one of the two texts is missing".into());
    }
    assert_none(&wrong);
}

/// All problems at once: who repairs one wants to see the others.
#[track_caller]
fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", shown(path)))
}

/// All files below a folder of the repository, without what is built and what is hidden.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let skipped = name == "target" || (name.starts_with('.') && name != ".github");
        match entry.file_type().unwrap() {
            _ if skipped => {}
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found.sort();
    found
}

/// The Rust files below a folder.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = files(&root().join(folder));
    found.retain(|file| file.extension().is_some_and(|e| e == "rs"));
    found
}

/// The files that are UTF-8 text.
fn text_files() -> Vec<PathBuf> {
    let is_text = |file: &PathBuf| fs::read(file).is_ok_and(|b| String::from_utf8(b).is_ok());
    files(&root()).into_iter().filter(is_text).collect()
}

/// The module of `src` that a file belongs to.
fn top_module(file: &Path) -> String {
    let inside = file.strip_prefix(root().join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str();
    Path::new(first)
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .into()
}

/// A file without comments and tests.
fn program_text(file: &Path) -> String {
    let is_test = |part: &str| matches!(part, "tests" | "tests.rs");
    let inside = file.strip_prefix(root()).unwrap();
    if inside.iter().any(|part| is_test(part.to_str().unwrap())) {
        return String::new();
    }
    let text = read(file);
    // Tests stand last in their file.
    let program = match text.find("\nmod tests {") {
        Some(tests) => &text[..tests],
        None => &text,
    };
    let code = program.lines().map(|line| match line.trim_start() {
        comment if comment.starts_with("//") => "",
        _ => line,
    });
    code.collect::<Vec<_>>().join("\n")
}

/// The modules named behind `crate::`, with or without braces.
fn used_modules(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            used.extend(words(rest).next());
            continue;
        };
        // The first word of each item of the list; what is in its own braces is not of it.
        let mut depth = 0;
        let mut item_begins = true;
        for part in list.split_inclusive(['{', '}', ',']) {
            if depth == 0 && item_begins {
                used.extend(words(part).next());
            }
            match part.chars().last() {
                Some('{') => depth += 1,
                Some('}') if depth == 0 => break,
                Some('}') => depth -= 1,
                _ => {}
            }
            item_begins = part.ends_with(',');
        }
    }
    let is_module = |name: &&str| name.starts_with(char::is_lowercase);
    let used = used.into_iter().filter(is_module);
    used.map(str::to_owned).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c| !is_word(c))
        .filter(|word| !word.is_empty())
}

#[test]
fn the_reader_of_imports_sees_them_all() {
    let text =
        "use crate::{precision, table::{a, b}, data};\n$crate::config::x crate::error::Error";
    let expected = ["config", "data", "error", "precision", "table"].map(str::to_owned);
    assert_eq!(used_modules(text), BTreeSet::from(expected));
}

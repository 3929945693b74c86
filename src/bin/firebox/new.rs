//! `firebox new`: a project to begin with.

use firebox::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a project, by their path in it. `{{name}}` is the project's name, `{{firebox}}` what
/// Cargo is told of firebox.
const FILES: [(&str, &str); 10] = [
    ("Cargo.toml", include_str!("project/Cargo.toml.in")),
    ("README.md", include_str!("project/README.md.in")),
    (".gitignore", include_str!("project/gitignore.in")),
    (".dockerignore", include_str!("project/gitignore.in")),
    ("src/main.rs", include_str!("project/main.rs.in")),
    ("src/model.rs", include_str!("project/model.rs.in")),
    ("src/data.rs", include_str!("project/data.rs.in")),
    (
        ".github/workflows/ci.yml",
        include_str!("project/ci.yml.in"),
    ),
    ("Dockerfile", include_str!("project/Dockerfile.in")),
    (
        "Dockerfile.cuda",
        include_str!("project/Dockerfile.cuda.in"),
    ),
];

/// Makes a project in a new folder.
///
/// # Errors
/// A folder that is there and not empty, a name that Cargo does not take, or what the file system
/// refuses.
pub fn project(path: &Path, firebox: Option<&Path>) -> Result<()> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| is_package_name(name)).ok_or_else(|| {
        Error::config(format!(
            "`{}` does not end in a name for a package; use letters, digits, `-` and `_`, with a \
             letter first",
            path.display()
        ))
    })?;
    let is_empty = fs::read_dir(path).map(|mut entries| entries.next().is_none());
    if path.exists() && !is_empty.unwrap_or(false) {
        return Err(Error::config(format!(
            "`{}` is there already; use another name",
            path.display()
        )));
    }
    let firebox = dependency(firebox)?;
    for (file, text) in FILES {
        let file = path.join(file);
        let text = text.replace("{{name}}", name);
        let text = text.replace("{{crate}}", &name.replace('-', "_"));
        let text = text.replace("{{firebox}}", &firebox);
        let folder = file.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
        fs::write(&file, text).map_err(|e| Error::io("write", &file, e))?;
    }
    println!(
        "`{name}` is made. Train it:\n\n    cd {}\n    cargo run --release",
        path.display()
    );
    Ok(())
}

/// What Cargo is told of firebox: the folder given, the checkout that this program was built from if
/// it is still there, otherwise the version.
fn dependency(given: Option<&Path>) -> Result<String> {
    let is_checkout = |folder: &Path| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        manifest.contains("name = \"firebox\"")
    };
    if let Some(folder) = given
        && !is_checkout(folder)
    {
        return Err(Error::config(format!(
            "`{}` is no checkout of firebox",
            folder.display()
        )));
    }
    let built_from = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let built_from = Some(built_from).filter(|folder| is_checkout(folder));
    let Some(folder) = given.map(Path::to_path_buf).or(built_from) else {
        return Ok(format!("version = \"{}\"", env!("CARGO_PKG_VERSION")));
    };
    let folder = std::path::absolute(&folder).map_err(|e| Error::io("find", &folder, e))?;
    // A string in TOML, as in JSON.
    let quoted = serde_json::Value::from(folder.to_string_lossy()).to_string();
    Ok(format!("path = {quoted}"))
}

fn is_package_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // Cargo refuses these: they are the language's own, or the project's dependencies.
    let taken = [
        "test", "core", "std", "alloc", "burn", "clap", "firebox", "main", "crate", "self",
    ];
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(is_word)
        && !taken.contains(&name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_project_has_its_name_and_its_firebox() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my-net");
        project(&path, None).unwrap();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("name = \"my-net\""), "{manifest}");
        assert!(manifest.contains("firebox = { path = "), "{manifest}");
        for (file, _) in FILES {
            let text = fs::read_to_string(path.join(file)).unwrap();
            assert!(!text.contains("{{"), "{file}: {text}");
        }
        let error = project(&path, None).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
    }

    #[test]
    fn names_that_cargo_does_not_take() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["1st", "a b", "über", "test", "firebox", ""] {
            let error = project(&dir.path().join(name), None).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{name}");
        }
        let error = project(&dir.path().join("net"), Some(dir.path())).unwrap_err();
        assert!(error.to_string().contains("no checkout"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

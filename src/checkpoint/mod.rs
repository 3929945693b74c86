//! Checkpoints: what is saved, and where.
//!
//! A checkpoint is a folder: `model.mpk` (the parameters, in full precision), `optimizer-N.bin`
//! for each parameter group, and `state.json` (counters and callback states). It is written under
//! another name first and renamed when it is complete, so a folder with its own name is whole.

use crate::error::{Error, ErrorKind, Result};
use crate::fabric::TrainState;
use crate::module::TrainModule;
use crate::parameters::{Parameter, parameters};
use crate::progress::Progress;
use burn::module::Module;
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::backend::Backend;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

type ModelRecorder = NamedMpkBytesRecorder<FullPrecisionSettings>;

const MODEL: &str = "model.mpk";

/// Loads the parameters of a checkpoint into a model of the same architecture, on any backend.
///
/// ```no_run
/// # use firebox::testing::{Line, Cpu};
/// let device = Default::default();
/// let model = Line::<Cpu>::new(&device);
/// let model = firebox::checkpoint::load_model("runs/version_0/checkpoints/epoch=2-step=237", model, &device)?;
/// # Ok::<(), firebox::Error>(())
/// ```
///
/// # Errors
/// No checkpoint at this path, or one of another model.
pub fn load_model<B: Backend, M: Module<B>>(
    path: impl AsRef<Path>,
    model: M,
    device: &B::Device,
) -> Result<M> {
    let file = path.as_ref().join(MODEL);
    let bytes = fs::read(&file).map_err(|e| Error::io("read", &file, e))?;
    let record = Recorder::<B>::load(&ModelRecorder::default(), bytes, device).map_err(|e| {
        let message = format!("`{}` does not fit this model", file.display());
        Error::new(ErrorKind::Io, message).with_source(e)
    })?;
    // Burn itself takes whatever shape the record has.
    let expected = parameters(&model);
    let loaded = model.load_record(record);
    let found = parameters(&loaded);
    match expected
        .iter()
        .zip(&found)
        .find(|(a, b)| a.shape != b.shape)
    {
        None => Ok(loaded),
        Some((Parameter { path, shape, .. }, found)) => Err(Error::new(
            ErrorKind::Io,
            format!(
                "`{}` does not fit this model: `{path}` has shape {:?} there and {shape:?} here",
                file.display(),
                found.shape
            ),
        )),
    }
}

/// Writes a checkpoint into a new folder.
pub(crate) fn save<M: TrainModule>(
    path: &Path,
    state: &TrainState<M>,
    progress: &Progress,
    callbacks: Vec<serde_json::Value>,
) -> Result<()> {
    let record = state.present()?.clone().into_record();
    let model = Recorder::<M::Backend>::record(&ModelRecorder::default(), record, ())
        .map_err(|e| Error::new(ErrorKind::Io, "cannot encode the model").with_source(e))?;
    let optimizers = state.optimizers.save_optimizers()?;
    let names: Vec<_> = optimizers.iter().map(|(name, _)| name).collect();
    let description = serde_json::json!({
        "firebox": env!("CARGO_PKG_VERSION"),
        "progress": progress,
        "optimizers": names,
        "callbacks": callbacks,
    });
    let mut files = vec![(MODEL.to_owned(), model)];
    for (index, (_, state)) in optimizers.into_iter().enumerate() {
        files.push((format!("optimizer-{index}.bin"), state));
    }
    files.push(("state.json".into(), description.to_string().into_bytes()));
    write_folder(path, &files)
}

/// Writes a folder that appears complete or not at all.
fn write_folder(path: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.tmp"));
    let made = fs::create_dir_all(&temporary);
    made.map_err(|e| Error::io("create", &temporary, e))?;
    for (name, bytes) in files {
        let file = temporary.join(name);
        write_synced(&file, bytes).map_err(|e| Error::io("write", &file, e))?;
    }
    fs::rename(&temporary, path).map_err(|e| Error::io("create", path, e))?;
    sync_folder(parent).map_err(|e| Error::io("write", parent, e))
}

/// A rename is on disk once the folder that holds it is.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    // Elsewhere a folder cannot be opened as a file.
    match cfg!(unix) {
        true => File::open(path)?.sync_all(),
        false => Ok(()),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a checkpoint that this run has written.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        // Somebody else has tidied up.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| Error::io("remove", path, e)),
    }
}

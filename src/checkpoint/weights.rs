//! Weights to start from: a checkpoint, a safetensors file or a PyTorch file.

use super::folder::Files;
use super::tensors::{self, Tensors};
use super::{MODEL, folder};
use crate::error::{Error, ErrorKind, Result};
use crate::panics;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, DType, Float, Int, Tensor, TensorData};
use std::fmt;
use std::path::Path;

/// Weights from a file, to be put into a model by the paths of its parameters.
///
/// A path is what the module's fields spell: `encoder.layers.0.weight`. By default everything must
/// fit ([`partial`](Self::partial) relaxes that). The precision is the model's: other numbers are
/// converted.
///
/// ```no_run
/// # use firebox::testing::{Line, Cpu};
/// use firebox::checkpoint::Weights;
///
/// let backbone = Line::<Cpu>::new(&Default::default());
/// let (backbone, report) = Weights::open("resnet18.safetensors")?
///     .rename_prefix("backbone.", "")
///     .partial()
///     .load(backbone)?;
/// println!("{report}");
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Weights {
    tensors: Tensors,
    /// Where they come from, for messages.
    source: String,
    pytorch: bool,
    partial: bool,
    prefixes: Vec<(String, String)>,
}

impl Weights {
    /// Reads a checkpoint's folder, a `.safetensors` file, or (with the feature `pytorch`) a `.pt`,
    /// `.pth` or `.bin` file of PyTorch that holds a state dict. No code in a file is ever run.
    ///
    /// # Errors
    /// No such file, a damaged one ([`ErrorKind::Corrupt`]), or another kind of file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let found = std::fs::metadata(path).map_err(|e| Error::io("read", path, e))?;
        if found.is_dir() {
            let files = Files::read(path)?;
            return Self::of_checkpoint(path, &files, MODEL);
        }
        let extension = path.extension().and_then(|e| e.to_str());
        match extension {
            Some("safetensors") => {
                let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
                Self::from_safetensors(&path.display().to_string(), &bytes)
            }
            Some("pt" | "pth" | "bin") => Self::from_pytorch_file(path),
            _ => Err(Error::config(format!(
                "`{}` is no file of weights; use a checkpoint's folder, or a .safetensors, .pt or \
                 .pth file",
                path.display()
            ))),
        }
    }

    /// The weights in a file of a checkpoint.
    pub(super) fn of_checkpoint(path: &Path, files: &Files, name: &str) -> Result<Self> {
        let missing = || folder::corrupt(path, format!("`{name}` is missing"));
        let bytes = files.contents.get(name).ok_or_else(missing)?;
        Self::from_safetensors(&path.join(name).display().to_string(), bytes)
    }

    fn from_safetensors(source: &str, bytes: &[u8]) -> Result<Self> {
        let (tensors, format) = tensors::decode(bytes).map_err(|e| e.context(source))?;
        let mut weights = Self::new(tensors, source.to_owned());
        weights.pytorch = format.as_deref() == Some("pt");
        Ok(weights)
    }

    fn new(tensors: Tensors, source: String) -> Self {
        Self {
            tensors,
            source,
            pytorch: false,
            partial: false,
            prefixes: Vec::new(),
        }
    }

    #[cfg(feature = "pytorch")]
    fn from_pytorch_file(path: &Path) -> Result<Self> {
        let tensors = super::pytorch::read(path)?;
        Ok(Self::new(tensors, path.display().to_string()).from_pytorch())
    }

    #[cfg(not(feature = "pytorch"))]
    fn from_pytorch_file(path: &Path) -> Result<Self> {
        Err(Error::config(format!(
            "`{}` is a PyTorch file; build with the feature `pytorch` to read it",
            path.display()
        )))
    }

    /// Says that a safetensors file was written by PyTorch, for those that do not say so themselves:
    /// linear layers hold their weights transposed there, and `gamma` and `beta` of a normalisation
    /// are called `weight` and `bias`.
    pub fn from_pytorch(mut self) -> Self {
        self.pytorch = true;
        self
    }

    /// Takes what fits. Parameters that the file does not have, or has in another shape, stay as
    /// they are, and what the model does not have is left out; the report says which.
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Replaces the beginning of the file's names, such as `module.` by nothing. Of several the
    /// first that fits counts.
    pub fn rename_prefix(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.prefixes.push((from.into(), to.into()));
        self
    }

    /// Puts the weights into a model.
    ///
    /// # Errors
    /// Unless [`partial`](Self::partial), a parameter that the file does not have, or in another
    /// shape, or one that the model does not have; all of them are named. And a file of which
    /// nothing fits.
    pub fn load<B: Backend, M: Module<B>>(self, model: M) -> Result<(M, LoadReport)> {
        let (pytorch, partial) = (self.pytorch, self.partial);
        let source = self.source.clone();
        let mut mapper = Load {
            tensors: self.renamed()?,
            pytorch,
            stack: Vec::new(),
            report: LoadReport::default(),
        };
        let model = panics::catch(ErrorKind::Backend, || {
            // Running statistics of the last batch wait to be joined, and would replace what is
            // loaded; a record joins them. A copy draws initial weights of its own, unless they are
            // there.
            let _ = model.num_params();
            drop(model.clone().into_record());
            Ok(model.map(&mut mapper))
        });
        let model = model.map_err(|e| e.context(format!("loading `{source}`")))?;
        let mut report = mapper.report;
        // PyTorch's normalisation counts its batches; Burn's does not.
        let is_count = |name: &str| name.rsplit('.').next() == Some("num_batches_tracked");
        let unexpected = mapper.tensors.into_keys();
        report.unexpected = unexpected
            .filter(|name| !(pytorch && is_count(name)))
            .collect();
        if report.loaded.is_empty() || !(partial || report.is_complete()) {
            return Err(Error::config(format!(
                "`{source}` does not fit this model: {report}"
            )));
        }
        Ok((model, report))
    }

    fn renamed(self) -> Result<Tensors> {
        let mut renamed = Tensors::new();
        for (name, data) in self.tensors {
            let prefixes = self.prefixes.iter();
            let mut new = prefixes.filter_map(|(from, to)| Some((to, name.strip_prefix(&**from)?)));
            let new = match new.next() {
                Some((to, rest)) => format!("{to}{rest}"),
                None => name,
            };
            if renamed.insert(new.clone(), data).is_some() {
                return Err(Error::config(format!(
                    "two tensors of `{}` are called `{new}` once their prefixes are replaced",
                    self.source
                )));
            }
        }
        Ok(renamed)
    }
}

/// What became of a file's weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Parameters that have the file's values now.
    pub loaded: Vec<String>,
    /// Parameters that the file does not have.
    pub missing: Vec<String>,
    /// Tensors of the file that the model does not have.
    pub unexpected: Vec<String>,
    /// Parameters that the file has in another shape or as another kind of number.
    pub mismatched: Vec<Mismatch>,
}

/// A parameter that a file has in another shape, or as another kind of number.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The parameter's path.
    pub path: String,
    /// What the file has, as in `F32 [3, 2]`.
    pub file: String,
    /// What the model has.
    pub model: String,
}

impl LoadReport {
    /// Whether every parameter was loaded, and nothing was left.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parameters loaded", self.loaded.len())?;
        let mut list = |what: &str, names: &[String]| match names {
            [] => Ok(()),
            // The first few tell what is wrong.
            [first @ .., _] if first.len() >= SHOWN => {
                let shown = names[..SHOWN].join("`, `");
                write!(f, "; {} {what}: `{shown}`, ...", names.len())
            }
            names => write!(f, "; {} {what}: `{}`", names.len(), names.join("`, `")),
        };
        list("missing in the file", &self.missing)?;
        list("not in the model", &self.unexpected)?;
        let mismatched = self.mismatched.iter();
        let mismatched: Vec<_> = mismatched
            .map(|m| format!("{}: {} there and {} here", m.path, m.file, m.model))
            .collect();
        list("of another shape or kind", &mismatched)
    }
}

const SHOWN: usize = 8;

struct Load {
    tensors: Tensors,
    pytorch: bool,
    stack: Vec<(String, String)>,
    report: LoadReport,
}

impl Load {
    /// The file's tensor for the parameter that is being visited, if it has this shape and kind.
    fn take(&mut self, shape: &[usize], dtype: DType) -> Option<TensorData> {
        let path: Vec<_> = self.stack.iter().map(|(name, _)| name.as_str()).collect();
        let path = path.join(".");
        let Some(name) = self.name_in_file(&path) else {
            self.report.missing.push(path);
            return None;
        };
        let mut data = self.tensors.remove(&name)?;
        if self.is_transposed() {
            data = transposed(data);
        }
        let found = data.shape.to_vec();
        if found != shape || kind(data.dtype) != kind(dtype) {
            self.report.mismatched.push(Mismatch {
                path,
                file: format!("{:?} {found:?}", data.dtype),
                model: format!("{dtype:?} {shape:?}"),
            });
            return None;
        }
        self.report.loaded.push(path);
        // How a bool is stored is the device's affair.
        let is_bool = kind(dtype) == Kind::Bool;
        Some(if is_bool {
            data
        } else {
            data.convert_dtype(dtype)
        })
    }

    fn name_in_file(&self, path: &str) -> Option<String> {
        let has = |name: &str| self.tensors.contains_key(name).then(|| name.to_owned());
        let renamed = || {
            let (container, last) = path.rsplit_once('.').unwrap_or(("", path));
            let last = match last {
                "gamma" => "weight",
                "beta" => "bias",
                _ => return None,
            };
            let dot = if container.is_empty() { "" } else { "." };
            has(&format!("{container}{dot}{last}"))
        };
        has(path).or_else(|| self.pytorch.then(renamed)?)
    }

    /// Whether the file has it with rows and columns exchanged, as PyTorch has linear layers.
    fn is_transposed(&self) -> bool {
        let is_weight = |(name, of): &(String, String)| name == "weight" && of == "Struct:Linear";
        self.pytorch && self.stack.last().is_some_and(is_weight)
    }
}

#[derive(PartialEq)]
enum Kind {
    Float,
    Int,
    Bool,
    Quantized,
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool(_) => Kind::Bool,
        DType::QFloat(_) => Kind::Quantized,
        dtype if dtype.is_float() => Kind::Float,
        _ => Kind::Int,
    }
}

/// A matrix with rows and columns exchanged; anything else as it is.
fn transposed(data: TensorData) -> TensorData {
    let (size, dtype) = (data.dtype.size(), data.dtype);
    let [rows, columns] = *data.shape.as_slice() else {
        return data;
    };
    let bytes = data.as_bytes();
    if size == 0 || bytes.len() != rows * columns * size {
        return data;
    }
    let entries: Vec<&[u8]> = bytes.chunks_exact(size).collect();
    let column = |column: usize| entries.iter().skip(column).step_by(columns.max(1));
    let by_column = (0..columns).flat_map(column);
    let bytes = by_column.flat_map(|entry| entry.iter().copied()).collect();
    TensorData::from_bytes_vec(bytes, [columns, rows], dtype)
}

macro_rules! load {
    ($($map:ident: $kind:ty),*) => { $(
        fn $map<const D: usize>(
            &mut self,
            param: Param<Tensor<B, D, $kind>>,
        ) -> Param<Tensor<B, D, $kind>> {
            // What the model saves is what it loads, in shape and layout. What comes from PyTorch
            // is turned into what the layer computes with, whatever it saves.
            let computes = self.is_transposed();
            let now = if computes { param.val() } else { param.transform_for_save().val() };
            let (id, device) = (param.id, now.device());
            let Some(data) = self.take(&now.dims(), now.dtype()) else {
                return param;
            };
            let mut tensor = Tensor::from_data(data, (&device, now.dtype()));
            if computes {
                tensor = param.clone().map(|_| tensor).transform_for_save().val();
            }
            param.transform_for_load(tensor, id)
        }
    )* };
}

impl<B: Backend> ModuleMapper<B> for Load {
    load!(map_float: Float, map_int: Int, map_bool: Bool);

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.stack.push((name.into(), container_type.into()));
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.stack.pop();
    }
}

//! Tensors by path: from a model, and as safetensors.

use crate::error::{Error, ErrorKind, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, BoolStore, DType, Float, Int, Tensor, TensorData, Transaction};
use safetensors::tensor::{Dtype, SafeTensors, View};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// Tensors by path, in the host's memory.
pub(crate) type Tensors = BTreeMap<String, TensorData>;

/// Every parameter of a model, of whatever type, in its own precision.
///
/// # Errors
/// What the backend reports.
pub(super) fn of_model<B: Backend, M: Module<B>>(model: &M) -> Result<Tensors> {
    let mut visitor = Collect::<B>::default();
    model.visit(&mut visitor);
    let read = visitor.read.unwrap_or_default().try_execute();
    let data = read.map_err(|e| {
        Error::new(ErrorKind::Backend, "cannot read the parameters").with_source(e.to_string())
    })?;
    Ok(visitor.paths.into_iter().zip(data).collect())
}

struct Collect<B: Backend> {
    stack: Vec<String>,
    paths: Vec<String>,
    /// One read of the device for all.
    read: Option<Transaction<B>>,
}

impl<B: Backend> Default for Collect<B> {
    fn default() -> Self {
        Self {
            stack: Vec::new(),
            paths: Vec::new(),
            read: None,
        }
    }
}

macro_rules! collect {
    ($($visit:ident: $kind:ty),*) => { $(
        fn $visit<const D: usize>(&mut self, param: &Param<Tensor<B, D, $kind>>) {
            let read = self.read.take().unwrap_or_default();
            // Some layers keep their parameters in another layout than the one they save.
            self.read = Some(read.register(param.transform_for_save().val()));
            self.paths.push(self.stack.join("."));
        }
    )* };
}

impl<B: Backend> ModuleVisitor<B> for Collect<B> {
    collect!(visit_float: Float, visit_int: Int, visit_bool: Bool);

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.stack.push(name.into());
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.stack.pop();
    }
}

/// The bytes of a safetensors file.
///
/// # Errors
/// A quantized tensor.
pub(super) fn encode(tensors: Tensors) -> Result<Vec<u8>> {
    let stored = tensors.into_iter().map(|(path, data)| {
        let stored = Stored::new(data).map_err(|e| e.context(format!("`{path}`")))?;
        Ok((path, stored))
    });
    let stored = stored.collect::<Result<Vec<_>>>()?;
    let description = HashMap::from([("format".to_owned(), FORMAT.to_owned())]);
    safetensors::serialize(stored, Some(description)).map_err(|e| {
        Error::new(ErrorKind::Io, "cannot encode the parameters").with_source(e.to_string())
    })
}

/// What the `format` of our files' description says; PyTorch's say `pt`.
const FORMAT: &str = "firebox";

/// The tensors of a safetensors file, and what its description says of its `format`.
///
/// # Errors
/// [`ErrorKind::Corrupt`].
pub(super) fn decode(bytes: &[u8]) -> Result<(Tensors, Option<String>)> {
    let corrupt = |e: safetensors::SafeTensorError| {
        Error::new(ErrorKind::Corrupt, "no safetensors").with_source(e.to_string())
    };
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(corrupt)?;
    let format = metadata.metadata().as_ref();
    let format = format.and_then(|m| m.get("format")).cloned();
    let file = SafeTensors::deserialize(bytes).map_err(corrupt)?;
    let mut tensors = Tensors::new();
    for (path, tensor) in file.iter() {
        let (dtype, data) = (tensor.dtype(), tensor.data());
        let burn_dtype = burn_dtype(dtype).ok_or_else(|| {
            let what = format!("`{path}` has type {dtype:?}, which Burn does not have");
            Error::new(ErrorKind::Corrupt, what)
        })?;
        // Any other byte than these two is no bool, and Burn does not look.
        if dtype == Dtype::BOOL && data.iter().any(|byte| *byte > 1) {
            let what = format!("`{path}` has bools that are neither true nor false");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let data = TensorData::from_bytes_vec(data.to_vec(), tensor.shape().to_vec(), burn_dtype);
        tensors.insert(path.to_owned(), data);
    }
    Ok((tensors, format))
}

/// A tensor in a type that the format has.
struct Stored {
    dtype: Dtype,
    data: TensorData,
    shape: Vec<usize>,
}

impl Stored {
    fn new(data: TensorData) -> Result<Self> {
        let data = match data.dtype {
            // How wide these are is the device's affair.
            DType::Flex32 => data.convert_dtype(DType::F32),
            DType::Bool(_) => data.convert_dtype(DType::Bool(BoolStore::Native)),
            _ => data,
        };
        let dtype = TYPES.iter().find(|(_, burn)| *burn == data.dtype);
        let (dtype, _) = dtype.ok_or_else(|| {
            Error::config(format!(
                "a checkpoint cannot hold a parameter of type {:?}; save the model before it is \
                 quantized",
                data.dtype
            ))
        })?;
        Ok(Self {
            dtype: *dtype,
            shape: data.shape.to_vec(),
            data,
        })
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.data.as_bytes())
    }
    fn data_len(&self) -> usize {
        self.data.as_bytes().len()
    }
}

const TYPES: [(Dtype, DType); 13] = [
    (Dtype::F64, DType::F64),
    (Dtype::F32, DType::F32),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::I64, DType::I64),
    (Dtype::I32, DType::I32),
    (Dtype::I16, DType::I16),
    (Dtype::I8, DType::I8),
    (Dtype::U64, DType::U64),
    (Dtype::U32, DType::U32),
    (Dtype::U16, DType::U16),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool(BoolStore::Native)),
];

fn burn_dtype(dtype: Dtype) -> Option<DType> {
    let found = TYPES.iter().find(|(stored, _)| *stored == dtype);
    found.map(|(_, burn)| *burn)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives() {
        let tensors = Tensors::from([
            ("f64".into(), TensorData::from([f64::MIN_POSITIVE, -0.0])),
            ("f32".into(), TensorData::from([[1.5f32, f32::NAN]])),
            ("i64".into(), TensorData::from([i64::MAX])),
            ("bool".into(), TensorData::from([true, false, true])),
            ("empty".into(), TensorData::new(Vec::<f32>::new(), [0, 3])),
        ]);
        let bytes = encode(tensors.clone()).unwrap();
        let (read, format) = decode(&bytes).unwrap();
        assert_eq!(format.as_deref(), Some("firebox"));
        for (path, data) in &tensors {
            // By bits, as NaN is not equal to itself.
            assert_eq!(read[path].as_bytes(), data.as_bytes(), "{path}");
            assert_eq!(read[path].dtype, data.dtype, "{path}");
            assert_eq!(read[path].shape, data.shape, "{path}");
        }
        assert_eq!(encode(read).unwrap(), bytes);
    }

    #[test]
    fn a_bool_is_one_of_two() {
        let tensors = Tensors::from([("mask".into(), TensorData::from([true, false]))]);
        let mut bytes = encode(tensors).unwrap();
        *bytes.last_mut().unwrap() = 7;
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

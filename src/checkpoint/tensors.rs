//! Tensors by path: from a model, as safetensors, and from a file of PyTorch.

use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "pytorch")]
use crate::panics;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, BoolStore, DType, Float, Int, Tensor, TensorData, Transaction};
use safetensors::tensor::{Dtype, SafeTensors, View};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
#[cfg(feature = "pytorch")]
use std::path::Path;

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

/// The tensors of a state dict that PyTorch saved.
///
/// # Errors
/// [`ErrorKind::Corrupt`], or tensors in an order of memory that the reader does not know.
#[cfg(feature = "pytorch")]
pub(super) fn of_pytorch_file(path: &Path) -> Result<Tensors> {
    use burn_store::pytorch::PytorchReader;

    let failed = |e: String| {
        let what = format!("`{}` cannot be read as a PyTorch file", path.display());
        Error::new(ErrorKind::Corrupt, what).with_source(e)
    };
    // The reader is not ours: what it does not foresee must not end the process.
    panics::catch(ErrorKind::Corrupt, || {
        let reader = PytorchReader::new(path).map_err(|e| failed(e.to_string()))?;
        pytorch::check(path, &reader).map_err(failed)?;
        let tensors = reader.into_tensors().into_iter();
        let tensors = tensors.map(|(path, tensor)| {
            let data = tensor.to_data();
            Ok((path, data.map_err(|e| failed(format!("{e:?}")))?))
        });
        tensors.collect()
    })
}

#[cfg(feature = "pytorch")]
mod pytorch {
    //! What Burn's reader of PyTorch files leaves unchecked: it takes zeros for numbers that are
    //! missing or damaged, and reads every tensor in the order of its rows, whatever its strides.

    use burn_store::pytorch::PytorchReader;
    use burn_store::pytorch::lazy_data::LazyDataSource;
    use burn_store::pytorch::pickle_reader::storage_type_to_element_size;
    use burn_store::pytorch::reader::FileFormat;
    use std::collections::{BTreeMap, HashMap};
    use std::path::Path;
    use std::rc::Rc;

    type Result<T> = std::result::Result<T, String>;

    pub(super) fn check(path: &Path, reader: &PytorchReader) -> Result<()> {
        match reader.metadata().format_type {
            _ if reader.is_empty() => Err("it holds no tensors".into()),
            FileFormat::Zip => check_zip(path),
            FileFormat::Legacy => check_legacy(&std::fs::read(path).map_err(|e| e.to_string())?),
            _ => Err("its format is too old; save it again with PyTorch 1.6 or newer".into()),
        }
    }

    /// An archive of a pickle, which names its storages, and a file for each of them.
    fn check_zip(path: &Path) -> Result<()> {
        let archive = LazyDataSource::from_zip(path).map_err(|e| e.to_string())?;
        let names = archive.keys();
        let folder = names.iter().find_map(|name| name.strip_suffix("data/0"));
        let folder = folder.ok_or("its storages are missing")?;
        // Reading an entry compares its checksum.
        let read = |name: String| {
            let content = archive.read(&format!("{folder}{name}"));
            content.map_err(|e| format!("`{name}`: {e}"))
        };
        let pickle = read("data.pkl".into())?;
        let mut pickle = Pickle::new(&pickle);
        pickle.run()?;
        for (key, length) in pickle.storages {
            let found = read(format!("data/{key}"))?.len();
            if found != length {
                return Err(format!("storage {key} has {found} bytes, not {length}"));
            }
        }
        Ok(())
    }

    /// Pickles one after another, the fourth with the tensors, then all storages.
    fn check_legacy(bytes: &[u8]) -> Result<()> {
        let mut pickle = Pickle::new(bytes);
        (0..5).try_for_each(|_| pickle.run())?;
        // Each has its number of elements before it.
        let lengths = pickle.storages.values().map(|length| length + 8);
        let (expected, found) = (lengths.sum::<usize>(), pickle.rest.len());
        if found != expected {
            return Err(format!("its storages have {found} bytes, not {expected}"));
        }
        Ok(())
    }

    /// What is on the stack of a pickle, as far as it describes tensors.
    enum Item {
        Mark,
        Number(i64),
        Text(String),
        Class(String),
        Tuple(Vec<Rc<Item>>),
        Other,
    }

    /// The instructions that PyTorch writes, run for the arguments of the tensors alone.
    struct Pickle<'a> {
        rest: &'a [u8],
        stack: Vec<Rc<Item>>,
        memo: HashMap<u32, Rc<Item>>,
        /// The length of each storage in bytes.
        storages: BTreeMap<String, usize>,
    }

    impl<'a> Pickle<'a> {
        fn new(bytes: &'a [u8]) -> Self {
            Self {
                rest: bytes,
                stack: Vec::new(),
                memo: HashMap::new(),
                storages: BTreeMap::new(),
            }
        }

        fn take(&mut self, length: usize) -> Result<&'a [u8]> {
            let (taken, rest) = self
                .rest
                .split_at_checked(length)
                .ok_or("it is cut short")?;
            self.rest = rest;
            Ok(taken)
        }

        /// An unsigned number of so many bytes.
        fn number(&mut self, length: usize) -> Result<u32> {
            let bytes = self.take(length)?.iter().rev();
            Ok(bytes.fold(0, |number, byte| number << 8 | u32::from(*byte)))
        }

        fn text(&mut self, length: usize) -> Result<String> {
            Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
        }

        fn line(&mut self) -> Result<String> {
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let line = self.text(end.ok_or("it is cut short")?)?;
            self.take(1)?;
            Ok(line)
        }

        fn push(&mut self, item: Item) {
            self.stack.push(Rc::new(item));
        }

        fn pop(&mut self) -> Result<Rc<Item>> {
            self.stack.pop().ok_or_else(|| "its stack is empty".into())
        }

        /// The last `count` items.
        fn pop_many(&mut self, count: usize) -> Result<Vec<Rc<Item>>> {
            let start = self.stack.len().checked_sub(count);
            Ok(self.stack.split_off(start.ok_or("its stack is empty")?))
        }

        fn pop_to_mark(&mut self) -> Result<Vec<Rc<Item>>> {
            let is_mark = |item: &Rc<Item>| matches!(**item, Item::Mark);
            let mark = self.stack.iter().rposition(is_mark);
            let items = self.stack.split_off(mark.ok_or("a mark is missing")? + 1);
            self.pop()?;
            Ok(items)
        }

        fn put(&mut self, index: u32) -> Result<()> {
            let top = self.stack.last().ok_or("its stack is empty")?;
            self.memo.insert(index, top.clone());
            Ok(())
        }

        fn get(&mut self, index: u32) -> Result<()> {
            let item = self
                .memo
                .get(&index)
                .ok_or("it recalls what it has not kept")?;
            self.stack.push(item.clone());
            Ok(())
        }

        /// Runs a pickle to its end.
        fn run(&mut self) -> Result<()> {
            loop {
                let instruction = self.number(1)?;
                match u8::try_from(instruction).unwrap_or_default() {
                    0x80 => drop(self.take(1)?),
                    b'.' => return self.pop().map(drop),
                    b'(' => self.push(Item::Mark),
                    b'q' => self.number(1).and_then(|index| self.put(index))?,
                    b'r' => self.number(4).and_then(|index| self.put(index))?,
                    0x94 => self.put(self.memo.len() as u32)?,
                    b'h' => self.number(1).and_then(|index| self.get(index))?,
                    b'j' => self.number(4).and_then(|index| self.get(index))?,
                    b'K' => self.number(1).map(|n| self.push(Item::Number(n.into())))?,
                    b'M' => self.number(2).map(|n| self.push(Item::Number(n.into())))?,
                    b'J' => {
                        let number = self.number(4)?.cast_signed();
                        self.push(Item::Number(number.into()));
                    }
                    0x8a => {
                        let length = self.number(1)? as usize;
                        let number = self.take(length)?;
                        let digit = |number, byte: &u8| number << 8 | i64::from(*byte);
                        self.push(Item::Number(number.iter().rev().fold(0, digit)));
                    }
                    b'X' => {
                        let length = self.number(4)? as usize;
                        let text = self.text(length)?;
                        self.push(Item::Text(text));
                    }
                    b'U' => {
                        let length = self.number(1)? as usize;
                        let text = self.text(length)?;
                        self.push(Item::Text(text));
                    }
                    b'c' => {
                        let _module = self.line()?;
                        let name = self.line()?;
                        self.push(Item::Class(name));
                    }
                    b'I' => self.line().map(|_| self.push(Item::Other))?,
                    b'G' => self.take(8).map(|_| self.push(Item::Other))?,
                    b'N' | 0x88 | 0x89 | b']' | b'}' => self.push(Item::Other),
                    b')' => self.push(Item::Tuple(Vec::new())),
                    count @ 0x85..=0x87 => {
                        let items = self.pop_many(usize::from(count - 0x84))?;
                        self.push(Item::Tuple(items));
                    }
                    b't' => {
                        let items = self.pop_to_mark()?;
                        self.push(Item::Tuple(items));
                    }
                    b'l' | b'd' => {
                        self.pop_to_mark()?;
                        self.push(Item::Other);
                    }
                    // Into the list, the dictionary or the object below.
                    b'e' | b'u' => drop(self.pop_to_mark()?),
                    b'a' | b'b' => drop(self.pop()?),
                    b's' => drop(self.pop_many(2)?),
                    // A persistent id stands for its storage.
                    b'Q' => {}
                    b'R' | 0x81 => {
                        let call = self.pop_many(2)?;
                        if let [function, arguments] = &*call {
                            self.call(function, arguments)?;
                        }
                        self.push(Item::Other);
                    }
                    other => return Err(format!("it has the unknown instruction {other:#x}")),
                }
            }
        }

        fn call(&mut self, function: &Item, arguments: &Item) -> Result<()> {
            let Item::Class(function) = function else {
                return Ok(());
            };
            if !matches!(&**function, "_rebuild_tensor" | "_rebuild_tensor_v2") {
                return Ok(());
            }
            let tensor = Tensor::new(arguments).ok_or("a tensor is described wrongly")?;
            tensor.check()?;
            let size = storage_type_to_element_size(&tensor.kind)?;
            let length = tensor.stored.checked_mul(size);
            let length = length.ok_or("a storage is too large")?;
            self.storages.insert(tensor.storage, length);
            Ok(())
        }
    }

    /// The arguments that a tensor is made of again.
    struct Tensor {
        kind: String,
        storage: String,
        /// How many numbers the storage has.
        stored: usize,
        offset: usize,
        shape: Vec<usize>,
        strides: Vec<usize>,
    }

    impl Tensor {
        fn new(arguments: &Item) -> Option<Self> {
            let number = |item: &Rc<Item>| match **item {
                Item::Number(number) => usize::try_from(number).ok(),
                _ => None,
            };
            let items = |item: &Item| match item {
                Item::Tuple(items) => Some(items.clone()),
                _ => None,
            };
            let arguments = items(arguments)?;
            let [storage, offset, shape, strides, ..] = arguments.as_slice() else {
                return None;
            };
            let storage = items(storage)?;
            let [_, kind, key, _, stored, ..] = storage.as_slice() else {
                return None;
            };
            let (Item::Class(kind), Item::Text(key)) = (&**kind, &**key) else {
                return None;
            };
            let numbers = |item: &Item| items(item)?.iter().map(number).collect::<Option<_>>();
            Some(Self {
                kind: kind.clone(),
                storage: key.clone(),
                stored: number(stored)?,
                offset: number(offset)?,
                shape: numbers(shape)?,
                strides: numbers(strides)?,
            })
        }

        fn check(&self) -> Result<()> {
            let (shape, strides) = (&self.shape, &self.strides);
            let mut count = 1_usize;
            for (length, stride) in shape.iter().zip(strides).rev() {
                // The stride of a single one is never used.
                if *length > 1 && *stride != count {
                    return Err(format!(
                        "a tensor of shape {shape:?} lies in memory with strides {strides:?}; save \
                         it again with `.contiguous()`"
                    ));
                }
                count = count.checked_mul(*length).ok_or("a tensor is too large")?;
            }
            let end = self.offset.checked_add(count);
            if shape.len() != strides.len() || end.is_none_or(|end| end > self.stored) {
                return Err("a tensor does not lie in its storage".into());
            }
            Ok(())
        }
    }
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

//! Files of PyTorch, read by Burn's reader, and what that leaves unchecked: it takes zeros for numbers
//! that are missing or damaged, and reads every tensor in the order of its rows, whatever its strides.

use super::tensors::Tensors;
use crate::error::{Error, ErrorKind, Result};
use crate::panics;
use burn_store::pytorch::PytorchReader;
use burn_store::pytorch::lazy_data::LazyDataSource;
use burn_store::pytorch::pickle_reader::storage_type_to_element_size;
use burn_store::pytorch::reader::FileFormat;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

/// The tensors of a state dict that PyTorch saved.
///
/// # Errors
/// [`ErrorKind::Corrupt`], or tensors in an order of memory that the reader does not know.
pub(super) fn read(path: &Path) -> Result<Tensors> {
    let failed = |e: String| {
        let what = format!("`{}` cannot be read as a PyTorch file", path.display());
        Error::new(ErrorKind::Corrupt, what).with_source(e)
    };
    // The reader is not ours: what it does not foresee must not end the process.
    panics::catch(ErrorKind::Corrupt, || {
        let reader = PytorchReader::new(path).map_err(|e| failed(e.to_string()))?;
        check(path, &reader).map_err(failed)?;
        let tensors = reader.into_tensors().into_iter();
        let tensors = tensors.map(|(path, tensor)| {
            let data = tensor.to_data();
            Ok((path, data.map_err(|e| failed(format!("{e:?}")))?))
        });
        tensors.collect()
    })
}

/// What is wrong, in words.
type Checked<T> = std::result::Result<T, String>;

fn check(path: &Path, reader: &PytorchReader) -> Checked<()> {
    match reader.metadata().format_type {
        _ if reader.is_empty() => Err("it holds no tensors".into()),
        FileFormat::Zip => check_zip(path),
        FileFormat::Legacy => check_legacy(&std::fs::read(path).map_err(|e| e.to_string())?),
        _ => Err("its format is too old; save it again with PyTorch 1.6 or newer".into()),
    }
}

/// An archive of a pickle, which names its storages, and a file for each of them.
fn check_zip(path: &Path) -> Checked<()> {
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
fn check_legacy(bytes: &[u8]) -> Checked<()> {
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

    fn take(&mut self, length: usize) -> Checked<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or("it is cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    /// An unsigned number of so many bytes.
    fn number(&mut self, length: usize) -> Checked<u32> {
        let bytes = self.take(length)?.iter().rev();
        Ok(bytes.fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn text(&mut self, length: usize) -> Checked<String> {
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    fn line(&mut self) -> Checked<String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let line = self.text(end.ok_or("it is cut short")?)?;
        self.take(1)?;
        Ok(line)
    }

    fn push(&mut self, item: Item) {
        self.stack.push(Rc::new(item));
    }

    fn pop(&mut self) -> Checked<Rc<Item>> {
        self.stack.pop().ok_or_else(|| "its stack is empty".into())
    }

    /// The last `count` items.
    fn pop_many(&mut self, count: usize) -> Checked<Vec<Rc<Item>>> {
        let start = self.stack.len().checked_sub(count);
        Ok(self.stack.split_off(start.ok_or("its stack is empty")?))
    }

    fn pop_to_mark(&mut self) -> Checked<Vec<Rc<Item>>> {
        let is_mark = |item: &Rc<Item>| matches!(**item, Item::Mark);
        let mark = self.stack.iter().rposition(is_mark);
        let items = self.stack.split_off(mark.ok_or("a mark is missing")? + 1);
        self.pop()?;
        Ok(items)
    }

    fn put(&mut self, index: u32) -> Checked<()> {
        let top = self.stack.last().ok_or("its stack is empty")?;
        self.memo.insert(index, top.clone());
        Ok(())
    }

    fn get(&mut self, index: u32) -> Checked<()> {
        let item = self
            .memo
            .get(&index)
            .ok_or("it recalls what it has not kept")?;
        self.stack.push(item.clone());
        Ok(())
    }

    /// Runs a pickle to its end.
    fn run(&mut self) -> Checked<()> {
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

    fn call(&mut self, function: &Item, arguments: &Item) -> Checked<()> {
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

    fn check(&self) -> Checked<()> {
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

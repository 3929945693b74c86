//! Sums over processes, each of which has summed over its own replicas.

use super::reduce::{Divide, Mean};
use super::values::{Pieces, Values, sum};
use super::{Group, Stream};
use crate::data::Shard;
use crate::error::{Error, ErrorKind, Result};

impl Group {
    /// The mean, or the sum, of what all processes have summed. The first replica of each process
    /// calls it.
    pub(super) fn reduce_over_processes(&self, local: Mean, divide: Divide) -> Result<Mean> {
        let processes = self.processes();
        let shard = |index| Shard {
            index,
            count: processes,
        };
        // Which process has what, how much it weighs, and what the first has to say.
        let header = Header {
            weight: local.weight,
            note: local.note,
            kinds: local.pieces.iter().map(kind).collect(),
        };
        let headers = self.over_processes(Stream::Loop, header.encode())?;
        let headers = headers.iter().map(|bytes| Header::decode(bytes));
        let headers = headers.collect::<Result<Vec<_>>>()?;
        let weight: f64 = headers.iter().map(|header| header.weight).sum();
        let whole = local.pieces.iter().flatten();
        let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); processes];
        for piece in whole {
            for (process, bytes) in bytes.iter_mut().enumerate() {
                let part = piece.part(shard(process).part(piece.len()));
                bytes.extend_from_slice(part.as_bytes());
            }
        }
        let received = self.exchange(Stream::Loop, processes, bytes)?;
        let mine = shard(self.process());
        let lens = lens(&headers)?;
        let mut parts = sums_of_parts(&received, &headers, &lens, mine)?;
        let factor = divide.factor(weight);
        let mut out = Vec::new();
        for part in parts.iter_mut().flatten() {
            out.extend_from_slice(&part.scale(factor.unwrap_or(0.0)).to_le_bytes());
            out.extend_from_slice(part.as_bytes());
        }
        let all = self.over_processes(Stream::Loop, out)?;
        let mut mean = Mean {
            pieces: Vec::with_capacity(lens.len()),
            squares: Vec::with_capacity(lens.len()),
            weight,
            note: headers
                .into_iter()
                .next()
                .map(|h| h.note)
                .unwrap_or_default(),
        };
        let mut readers: Vec<Reader<'_>> = all.iter().map(|bytes| Reader(bytes)).collect();
        for len in &lens {
            let Some((format, len)) = len else {
                mean.pieces.push(None);
                mean.squares.push(0.0);
                continue;
            };
            let (mut whole, mut squares) = (format.empty(*len), 0.0);
            for (process, reader) in readers.iter_mut().enumerate() {
                squares += reader.number()?;
                let part = reader.values(format, shard(process).part(*len).len())?;
                whole.append(&part)?;
            }
            mean.pieces.push(factor.map(|_| whole));
            mean.squares.push(squares);
        }
        Ok(mean)
    }
}

/// This process's part of every piece, summed over the processes in their order.
fn sums_of_parts(
    received: &[Vec<u8>],
    headers: &[Header],
    lens: &[Option<(Values, usize)>],
    mine: Shard,
) -> Result<Pieces> {
    let mut readers: Vec<Reader<'_>> = received.iter().map(|bytes| Reader(bytes)).collect();
    let mut sums = Vec::with_capacity(lens.len());
    for (index, len) in lens.iter().enumerate() {
        let Some((format, len)) = len else {
            sums.push(None);
            continue;
        };
        let len = mine.part(*len).len();
        let mut parts = Vec::new();
        for (reader, header) in readers.iter_mut().zip(headers) {
            if header.kinds.get(index).is_some_and(Option::is_some) {
                parts.push(reader.values(format, len)?);
            }
        }
        sums.push(sum(parts.iter(), 0..len, 1.0)?.0);
    }
    Ok(sums)
}

/// The format (as an empty list) and length of every piece that some process has.
fn lens(headers: &[Header]) -> Result<Vec<Option<(Values, usize)>>> {
    let pieces = headers.iter().map(|h| h.kinds.len()).max().unwrap_or(0);
    let of_index = |index: usize| {
        let mut kinds = headers.iter().filter_map(|h| *h.kinds.get(index)?);
        let Some(first) = kinds.next() else {
            return Ok(None);
        };
        if kinds.any(|other| other != first) {
            return Err(Error::new(
                ErrorKind::Aborted,
                "processes differ in the shapes or number formats of their tensors; all must \
                 build the same model",
            ));
        }
        let (is_wide, len) = first;
        Ok(Some((format(is_wide), len)))
    };
    (0..pieces).map(of_index).collect()
}

/// Pieces as bytes, which [`decode`] reads.
pub(super) fn encode(pieces: &[Option<Values>]) -> Vec<u8> {
    let header = Header {
        weight: 0.0,
        note: Vec::new(),
        kinds: pieces.iter().map(kind).collect(),
    };
    let header = header.encode();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&header);
    for piece in pieces.iter().flatten() {
        bytes.extend_from_slice(piece.as_bytes());
    }
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Result<Pieces> {
    let mut reader = Reader(bytes);
    let header = reader.code()? as usize;
    let header = Header::decode(reader.take(header)?)?;
    let piece = |kind: &Kind| {
        kind.map(|(is_wide, len)| reader.values(&format(is_wide), len))
            .transpose()
    };
    header.kinds.iter().map(piece).collect()
}

/// An empty list of numbers with 64 bits, or with 32.
fn format(is_wide: bool) -> Values {
    match is_wide {
        true => Values::F64(Vec::new()),
        false => Values::F32(Vec::new()),
    }
}

/// Whether a piece has 64 bits, and its length.
type Kind = Option<(bool, usize)>;

fn kind(piece: &Option<Values>) -> Kind {
    let piece = piece.as_ref()?;
    Some((matches!(piece, Values::F64(_)), piece.len()))
}

struct Header {
    weight: f64,
    note: Vec<f64>,
    kinds: Vec<Kind>,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.weight.to_le_bytes());
        bytes.extend_from_slice(&(self.note.len() as u64).to_le_bytes());
        for number in &self.note {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for kind in &self.kinds {
            // Lengths are below 2^62.
            let code = kind.map_or(0, |(is_wide, len)| {
                1 | u64::from(is_wide) << 1 | (len as u64) << 2
            });
            bytes.extend_from_slice(&code.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader(bytes);
        let weight = reader.number()?;
        let notes = reader.code()?;
        let note = (0..notes).map(|_| reader.number()).collect::<Result<_>>()?;
        let mut kinds = Vec::new();
        while !reader.0.is_empty() {
            let code = reader.code()?;
            kinds.push((code != 0).then_some((code & 2 != 0, (code >> 2) as usize)));
        }
        Ok(Self {
            weight,
            note,
            kinds,
        })
    }
}

fn unlike() -> Error {
    Error::new(
        ErrorKind::Aborted,
        "a process sent something else than was expected; all must run the same program",
    )
}

/// Reads what another process has sent.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(unlike)?;
        self.0 = rest;
        Ok(taken)
    }

    fn code(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.try_into().unwrap_or_default();
        Ok(u64::from_le_bytes(bytes))
    }

    fn number(&mut self) -> Result<f64> {
        Ok(f64::from_bits(self.code()?))
    }

    fn values(&mut self, format: &Values, len: usize) -> Result<Values> {
        let size = match format {
            Values::F32(_) => 4,
            Values::F64(_) => 8,
        };
        let bytes = self.take(len * size)?;
        format.read(bytes).ok_or_else(unlike)
    }
}

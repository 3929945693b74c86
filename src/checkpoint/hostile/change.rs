//! Ways to change a file: its bytes, and what its format means by them.

use super::super::folder::{Files, MANIFEST};
use super::super::{GRADIENTS, MODEL, STATE};
use super::manifest;
use crate::data::SampleRng;
use ciborium::Value;

/// The files with one of them changed in the way of this number, and the manifest.
pub(super) fn changed(files: &Files, target: &str, random: &mut SampleRng) -> (Files, Vec<u8>) {
    let mut files = files.clone();
    let manifest = manifest(&files);
    let content = files.contents.get(target).unwrap_or(&manifest);
    let changed = match (target, random.below(4)) {
        (MODEL | GRADIENTS, 0) => change_header(content, random),
        (STATE | MANIFEST, 0 | 1) => change_token(content, random),
        (name, 0 | 1) if name.ends_with(".cbor") => change_value(content, random),
        _ => {
            let others: Vec<_> = files.contents.values().collect();
            change_bytes(content, &others, random)
        }
    };
    match files.contents.get_mut(target) {
        None => (files, changed),
        Some(content) => {
            *content = changed;
            (files, manifest)
        }
    }
}

/// Bytes, wherever they are.
fn change_bytes(content: &[u8], others: &[&Vec<u8>], random: &mut SampleRng) -> Vec<u8> {
    let mut bytes = content.to_vec();
    for _ in 0..=random.below(3) {
        let place = random.below(bytes.len().max(1));
        let end = (place + 1 + random.below(16)).min(bytes.len());
        match random.below(9) {
            _ if bytes.is_empty() => bytes.push(random.below(256) as u8),
            0 | 1 => bytes[place] ^= 1 << random.below(8),
            2 => bytes[place] = random.below(256) as u8,
            3 => bytes.truncate(place),
            4 => drop(bytes.drain(place..end)),
            5 => drop(bytes.splice(place..place, random.next_u64().to_le_bytes())),
            6 => {
                let copied = bytes[place..end].to_vec();
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, copied));
            }
            7 => {
                let other = others[random.below(others.len())];
                let from = random.below(other.len().max(1));
                let to = (from + 1 + random.below(64)).min(other.len());
                drop(bytes.splice(place..end, other[from.min(to)..to].iter().copied()));
            }
            // A length, as CBOR and safetensors write them, of more than there is.
            _ => {
                let length = u64::MAX >> random.below(64);
                let field = match random.below(2) {
                    0 => length.to_le_bytes().to_vec(),
                    _ => {
                        let kind = [0x5b, 0x7b, 0x9b, 0xbb][random.below(4)];
                        [&[kind], &length.to_be_bytes()[..]].concat()
                    }
                };
                let end = (place + field.len()).min(bytes.len());
                drop(bytes.splice(place..end, field));
            }
        }
    }
    bytes
}

/// What stands where it should not.
const TOKENS: [&str; 20] = [
    "null",
    "true",
    "-1",
    "0",
    "0.5",
    "1e308",
    "1e999",
    "-0.0",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "\"\"",
    "\"NaN\"",
    "\"inf\"",
    "[]",
    "{}",
    "[[]]",
    "\"F16\"",
    "\"../up\"",
    "\"\\ud800\"",
];

/// Words, numbers, texts or signs of JSON.
fn change_token(content: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let mut tokens = tokens(content);
    for _ in 0..=random.below(2) {
        let place = random.below(tokens.len());
        let other = tokens[random.below(tokens.len())].clone();
        match random.below(6) {
            0 => drop(tokens.remove(place)),
            1 => tokens[place] = other,
            2 => tokens.insert(place, other),
            3 => tokens[place] = "[".repeat(1 + random.below(300)).into_bytes(),
            _ => tokens[place] = TOKENS[random.below(TOKENS.len())].into(),
        }
        if tokens.is_empty() {
            break;
        }
    }
    tokens.concat()
}

fn tokens(text: &[u8]) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = Vec::new();
    let mut in_text = false;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    for (index, byte) in text.iter().enumerate() {
        let goes_on = index > 0 && (in_text || is_word(*byte) && is_word(text[index - 1]));
        match tokens.last_mut() {
            Some(token) if goes_on => token.push(*byte),
            _ => tokens.push(vec![*byte]),
        }
        in_text ^= *byte == b'"';
    }
    tokens
}

/// The description of the tensors in a safetensors file, with its length before it.
fn change_header(content: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let (header, data) = content[8..].split_at(length);
    let header = change_token(header, random);
    [&(header.len() as u64).to_le_bytes(), &*header, data].concat()
}

/// A value of CBOR, or what it is in.
fn change_value(content: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let mut value: Value = ciborium::from_reader(content).unwrap();
    for _ in 0..=random.below(2) {
        let mut left = usize::MAX;
        node(&mut value, &mut left);
        let mut number = random.below(usize::MAX - left);
        if let Some(node) = node(&mut value, &mut number) {
            let old = std::mem::replace(node, Value::Null);
            *node = match random.below(12) {
                0 => Value::Null,
                1 => Value::Integer(random.next_u64().into()),
                2 => Value::Integer((-1).into()),
                3 => Value::Float(f64::NAN),
                4 => Value::Text("Rank8".into()),
                5 => Value::Bytes(vec![7; random.below(40)]),
                6 => Value::Array(vec![old.clone(), old]),
                7 => Value::Array(Vec::new()),
                8 => Value::Map(Vec::new()),
                // What is tagged is read as if it were not.
                _ => Value::Tag(random.below(30) as u64, Box::new(old)),
            };
        }
    }
    let mut bytes = Vec::new();
    ciborium::into_writer(&value, &mut bytes).unwrap();
    bytes
}

/// The value of this number, keys counted too.
fn node<'a>(value: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| node(item, number)),
        Value::Map(entries) => entries.iter_mut().find_map(|(key, value)| {
            let found = node(key, number);
            found.or_else(|| node(value, number))
        }),
        Value::Tag(_, inner) => node(inner, number),
        _ => None,
    }
}

//! The events of TensorBoard, as protocol buffers. Field numbers are those of the files named, all
//! below `tensorboard/` in TensorBoard's repository.

use crate::error::Result;
use crate::logger::{Histogram, Image};
use serde_json::Value;

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

/// How a session has ended: `Status` in `plugins/hparams/api.proto`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Status {
    Unknown = 0,
    Success = 1,
    Failure = 2,
}

/// `DataType.DT_STRING` and `DT_FLOAT` in `compat/proto/types.proto`.
const FLOATS: u64 = 1;
const TEXTS: u64 = 7;
/// `DATA_CLASS_TENSOR` in `compat/proto/summary.proto`.
const TENSOR: u64 = 2;

/// The first event of a file: `Event` in `compat/proto/event.proto`.
pub(super) fn version(time: f64) -> Vec<u8> {
    Message::default()
        .double(1, time)
        .bytes(3, b"brain.Event:2")
        .0
}

/// What other files have from this step on is out of date, to a TensorBoard that has read it before
/// it was dropped: `SessionLog` with `START` in `compat/proto/event.proto`.
pub(super) fn start(time: f64, step: u64) -> Vec<u8> {
    Message::default()
        .double(1, time)
        .varint(2, step)
        .message(7, &Message::default().varint(1, 1))
        .0
}

/// An event with values: `Event` in `compat/proto/event.proto`.
pub(super) fn summary(time: f64, step: u64, values: impl IntoIterator<Item = Message>) -> Vec<u8> {
    let values = values.into_iter();
    let values = values.fold(Message::default(), |summary, v| summary.message(1, &v));
    Message::default()
        .double(1, time)
        .varint(2, step)
        .message(5, &values)
        .0
}

/// `Summary.Value` in `compat/proto/summary.proto`.
pub(super) fn scalar(name: &str, value: f64) -> Message {
    // A float alone: neither TensorBoard's own reader nor others take doubles as scalars.
    Message::default()
        .bytes(1, name.as_bytes())
        .float(2, value as f32)
}

/// `HistogramProto` in `compat/proto/histogram.proto`.
pub(super) fn histogram(name: &str, histogram: &Histogram) -> Message {
    let (edges, counts): (Vec<f64>, Vec<f64>) = histogram.buckets.iter().copied().unzip();
    let histogram = Message::default()
        .double(1, histogram.min)
        .double(2, histogram.max)
        .double(3, histogram.count as f64)
        .double(4, histogram.sum)
        .double(5, histogram.sum_of_squares)
        .doubles(6, &edges)
        .doubles(7, &counts);
    Message::default()
        .bytes(1, name.as_bytes())
        .message(5, &histogram)
}

/// `Summary.Image` in `compat/proto/summary.proto`, as PNG.
pub(super) fn image(name: &str, image: &Image) -> Result<Message> {
    let png = image.png()?;
    let image = Message::default()
        .varint(1, u64::from(image.height))
        .varint(2, u64::from(image.width))
        .varint(3, image.channels as u64)
        .bytes(4, &png);
    Ok(Message::default()
        .bytes(1, name.as_bytes())
        .message(4, &image))
}

/// A text of the plugin `text`.
pub(super) fn text(name: &str, text: &str) -> Message {
    let tensor = Message::default()
        .varint(1, TEXTS)
        .message(2, &Message::default())
        .bytes(8, text.as_bytes());
    tensor_of("text", name, &Message::default(), &tensor)
}

/// `SessionStartInfo` in `plugins/hparams/plugin_data.proto`, with what a run was started with:
/// `{"a": {"b": 1}}` is `a.b`, a list is its JSON text, and what is null is left out.
pub(super) fn session_start(hyper_parameters: &Value, time: f64) -> Message {
    let mut flat = Vec::new();
    flatten("", hyper_parameters, &mut flat);
    let start = flat.into_iter().fold(Message::default(), |start, (k, v)| {
        start.message(1, &Message::default().bytes(1, k.as_bytes()).message(2, &v))
    });
    let data = Message::default().message(3, &start.double(5, time));
    session("_hparams_/session_start_info", &data)
}

/// `SessionEndInfo` in `plugins/hparams/plugin_data.proto`.
pub(super) fn session_end(status: Status, time: f64) -> Message {
    let end = Message::default().varint(1, status as u64).double(2, time);
    let data = Message::default().message(4, &end);
    session("_hparams_/session_end_info", &data)
}

/// The plugin `hparams` keeps its data in the metadata; the tensor is empty.
fn session(name: &str, data: &Message) -> Message {
    let one_dimension_of_none = Message::default().message(2, &Message::default());
    let tensor = Message::default()
        .varint(1, FLOATS)
        .message(2, &one_dimension_of_none);
    tensor_of("hparams", name, data, &tensor)
}

/// `Summary.Value` with `SummaryMetadata` in `compat/proto/summary.proto`.
fn tensor_of(plugin: &str, name: &str, data: &Message, tensor: &Message) -> Message {
    let plugin = Message::default()
        .bytes(1, plugin.as_bytes())
        .message(2, data);
    let metadata = Message::default().message(1, &plugin).varint(4, TENSOR);
    Message::default()
        .bytes(1, name.as_bytes())
        .message(8, tensor)
        .message(9, &metadata)
}

/// The leaves, as `google.protobuf.Value`, each under its path.
fn flatten(path: &str, value: &Value, flat: &mut Vec<(String, Message)>) {
    let leaf = Message::default();
    let leaf = match value {
        Value::Null => return,
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                match path {
                    "" => flatten(name, value, flat),
                    _ => flatten(&format!("{path}.{name}"), value, flat),
                }
            }
            return;
        }
        Value::Bool(value) => leaf.varint(4, u64::from(*value)),
        Value::String(text) => leaf.bytes(3, text.as_bytes()),
        Value::Number(number) => match number.as_f64() {
            Some(number) => leaf.double(2, number),
            None => leaf.bytes(3, number.to_string().as_bytes()),
        },
        Value::Array(_) | Value::Object(_) => leaf.bytes(3, value.to_string().as_bytes()),
    };
    let name = if path.is_empty() { "value" } else { path };
    flat.push((name.to_owned(), leaf));
}

/// The wire format: <https://protobuf.dev/programming-guides/encoding/>.
impl Message {
    fn tag(&mut self, field: u32, wire_type: u32) {
        self.raw_varint(u64::from(field << 3 | wire_type));
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(mut self, field: u32, value: u64) -> Self {
        self.tag(field, 0);
        self.raw_varint(value);
        self
    }

    fn double(mut self, field: u32, value: f64) -> Self {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u32, value: f32) -> Self {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.tag(field, 2);
        self.raw_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn doubles(self, field: u32, values: &[f64]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(field, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_wire_format_is_that_of_the_encoding_guide() {
        // Its examples: 150 in field 1, "testing" in field 2.
        assert_eq!(Message::default().varint(1, 150).0, [0x08, 0x96, 0x01]);
        let text = Message::default().bytes(2, b"testing").0;
        assert_eq!(text, b"\x12\x07testing");
        assert_eq!(Message::default().varint(16, 0).0, [0x80, 0x01, 0x00]);
        let largest = Message::default().varint(1, u64::MAX).0;
        assert_eq!(largest, [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert_eq!(Message::default().float(2, 1.0).0, [0x15, 0, 0, 0x80, 0x3f]);
    }

    #[test]
    fn hyper_parameters_are_flattened() {
        let mut flat = Vec::new();
        let values = json!({"a": {"b": 1, "c": {"d": true}}, "e": [1, 2], "f": null, "g": {}});
        flatten("", &values, &mut flat);
        let names: Vec<&str> = flat.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.b", "a.c.d", "e", "g"]);
        assert_eq!(flat[2].1.0, b"\x1a\x05[1,2]");
        flat.clear();
        flatten("", &json!("tiny"), &mut flat);
        assert_eq!(flat[0].0, "value");
    }
}

#!/usr/bin/env python3
"""Prints what TensorBoard's own reader finds in a folder of event files, as JSON.

    python3 tests/tensorboard.py FOLDER [--follow]

Under `scalars`, `histograms`, `images` and `texts` each name has its entries in the order of the
files; under `hparams` are the values that the run was started with and the status it has ended
with. Floats that JSON does not have are texts. With `--follow` it prints `scalars` alone, and for each
line on its input it reads on and prints them again, as a TensorBoard that is running does.
"""

import json
import math
import struct
import sys
import zlib
from pathlib import Path

# This file has the package's name: it is not to be imported in its place.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.util import tensor_util

# Without it 10,000 values of a name are sampled.
EVERYTHING = {
    event_accumulator.SCALARS: 0,
    event_accumulator.HISTOGRAMS: 0,
    event_accumulator.IMAGES: 0,
    event_accumulator.TENSORS: 0,
}


def number(value):
    return value if math.isfinite(value) else str(value)


def histogram(event):
    value = event.histogram_value
    return {
        "step": event.step,
        "min": number(value.min),
        "max": number(value.max),
        "num": value.num,
        "sum": number(value.sum),
        "sum_squares": number(value.sum_squares),
        "limits": list(value.bucket_limit),
        "counts": list(value.bucket),
    }


def image(event):
    png = event.encoded_image_string
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:8]
    packed, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind + data), kind
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", data[:10])
        if kind == b"IDAT":
            packed += data
        at += 12 + length
    assert depth == 8 and (width, height) == (event.width, event.height)
    channels = {0: 1, 2: 3, 6: 4}[color]
    rows = zlib.decompress(packed)
    assert len(rows) == height * (1 + width * channels)
    # Of every filter the first pixel is as it was: there is nothing before it to differ from.
    first = list(rows[1 : 1 + channels])
    return {"step": event.step, "width": width, "height": height, "first": first}


def scalar(event):
    return [event.step, number(tensor_util.make_ndarray(event.tensor_proto).item())]


def text(event):
    value = tensor_util.make_ndarray(event.tensor_proto).item()
    return {"step": event.step, "text": value.decode()}


def hparams(contents):
    found = {}
    if metadata.SESSION_START_INFO_TAG in contents:
        start = contents[metadata.SESSION_START_INFO_TAG]
        start = metadata.parse_session_start_info_plugin_data(start)
        values = start.hparams.items()
        found["values"] = {name: getattr(v, v.WhichOneof("kind")) for name, v in values}
    if metadata.SESSION_END_INFO_TAG in contents:
        end = contents[metadata.SESSION_END_INFO_TAG]
        found["status"] = metadata.parse_session_end_info_plugin_data(end).status
    return found


def plugin(events, name):
    try:
        return events.PluginTagToContent(name)
    except KeyError:
        return {}


def everything(events):
    tags = events.Tags()
    return {
        "scalars": {
            tag: [[event.step, number(event.value)] for event in events.Scalars(tag)]
            for tag in tags["scalars"]
        },
        "histograms": {
            tag: [histogram(event) for event in events.Histograms(tag)]
            for tag in tags["histograms"]
        },
        "images": {tag: [image(event) for event in events.Images(tag)] for tag in tags["images"]},
        "texts": {
            tag: [text(event) for event in events.Tensors(tag)] for tag in plugin(events, "text")
        },
        "hparams": hparams(plugin(events, metadata.PLUGIN_NAME)),
    }


def follow(folder):
    everything = {scalar_metadata.PLUGIN_NAME: 0}
    events = plugin_event_accumulator.EventAccumulator(folder, tensor_size_guidance=everything)
    reads_on = True
    while reads_on:
        tags = plugin(events.Reload(), scalar_metadata.PLUGIN_NAME)
        found = {tag: [scalar(event) for event in events.Tensors(tag)] for tag in tags}
        print(json.dumps({"scalars": found}, allow_nan=False), flush=True)
        reads_on = sys.stdin.readline()


def main(folder, *follows):
    if follows:
        follow(folder)
        return
    events = event_accumulator.EventAccumulator(folder, size_guidance=EVERYTHING)
    print(json.dumps(everything(events.Reload()), allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])

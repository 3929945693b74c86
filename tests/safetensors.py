#!/usr/bin/env python3
"""Compares a checkpoint with what it should hold, by Python's own reader of safetensors.

    python3 tests/safetensors.py CHECKPOINT EXPECTED

CHECKPOINT is a checkpoint's folder. EXPECTED is a JSON file: for each parameter's name its
`dtype` (as numpy calls it), its `shape` and its `values`, row by row. Exits with 1 if anything
differs by a single bit.
"""

import json
import sys
from pathlib import Path

# This file has the package's name: it is not to be imported in its place.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

try:
    import numpy
    from safetensors import safe_open
except ImportError as error:
    print(f"skipped: Python has no {error.name}")
    sys.exit(0)


def read(checkpoint):
    with safe_open(Path(checkpoint) / "model.safetensors", framework="numpy") as file:
        if file.metadata() != {"format": "firebox"}:
            print(f"the description is {file.metadata()}")
            sys.exit(1)
        return {name: file.get_tensor(name) for name in file.keys()}


def difference(name, found, expected):
    if found is None or expected is None:
        return f"{name} is {'missing' if found is None else 'unexpected'}"
    values = numpy.array(expected["values"], dtype=expected["dtype"])
    values = values.reshape(expected["shape"])
    if (found.dtype, found.shape) != (values.dtype, values.shape):
        return f"{name} is {found.dtype} {found.shape}, not {values.dtype} {values.shape}"
    # By their bytes: numbers would take -0.0 for 0.0.
    if found.tobytes() != values.tobytes():
        return f"{name} is {found.tolist()}, not {values.tolist()}"
    return None


def main(checkpoint, expected):
    found = read(checkpoint)
    expected = json.loads(Path(expected).read_text())
    names = sorted({*found, *expected})
    differences = [difference(name, found.get(name), expected.get(name)) for name in names]
    differences = [text for text in differences if text]
    print("\n".join(differences) or f"{len(names)} parameters are the same")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

#!/usr/bin/env python3
"""Makes the files of PyTorch beside it, which the tests in `weights.rs` read.

Needs torch, numpy and safetensors (made with torch 2.15.0 and safetensors 0.8.0):

    python3 tests/it/data/pytorch.py
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent


class Net(nn.Module):
    """No two of its parameters have the same numbers, and the linear layer is not square."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, kernel_size=2)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.LayerNorm(3)
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        x = self.norm(self.conv(x)).mean(dim=(2, 3))
        return self.fc(self.scale(x))


def ramp(shape, start):
    """Numbers that 32 bits hold exactly, none of them round."""
    count = torch.Size(shape).numel()
    values = [((start + 7 * i) % 31 - 13) / 16 for i in range(count)]
    return torch.tensor(values).reshape(shape)


net = Net().eval()
state = net.state_dict()
for index, (name, tensor) in enumerate(state.items()):
    if name == "norm.num_batches_tracked":
        tensor.fill_(5)
    elif name == "norm.running_var":
        tensor.copy_(ramp(tensor.shape, index).abs() + 0.5)
    else:
        tensor.copy_(ramp(tensor.shape, index))

# In double precision, so that what differs is the other side's rounding alone.
x = ramp([2, 2, 3, 3], 4)
y = net.double()(x.double())
net.float()
known = {"input": x.flatten().tolist(), "output": y.detach().flatten().tolist()}
(HERE / "net.json").write_text(json.dumps(known, indent=1) + "\n")

torch.save(state, HERE / "net.pt")
save_file(state, HERE / "net.safetensors", metadata={"format": "pt"})
# As training scripts save it: among other things.
torch.save({"epoch": 3, "model": state, "best": 0.5}, HERE / "training.pt")
# The same values in another order in memory, and views of one storage.
strided = net.to(memory_format=torch.channels_last).state_dict()
torch.save(strided, HERE / "strided.pt")
both = torch.cat([state["fc.bias"], state["scale.bias"]])
views = {**state, "fc.bias": both[:2], "scale.bias": both[2:]}
torch.save(views, HERE / "views.pt")
# As PyTorch before 1.6 wrote it.
torch.save(state, HERE / "legacy.pt", _use_new_zipfile_serialization=False)

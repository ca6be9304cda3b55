"""Names the class of pictures, with the weights that `downshift checkpoints export --best --out best.safetensors` wrote for
`task: vision`:

    python classify.py best.safetensors one.jpg two.png
"""

import json
import sys

import numpy
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open


def norm(x, weights, name):
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.gamma"], weights[f"{name}.beta"], 1e-5)


def network(weights, x):
    """Maps pictures [batch, channels, height, width] to logits [batch, classes]."""
    stride = min(4, max(1, min(x.shape[2:]) // 32))
    x = F.conv2d(x, weights["stem.weight"], weights["stem.bias"], stride=stride, padding=1)
    block = 0
    while f"blocks.{block}.depthwise.weight" in weights:
        name = f"blocks.{block}"
        # Linear weights are stored as [in, out].
        mix, bias = weights[f"{name}.pointwise.weight"], weights[f"{name}.pointwise.bias"]
        halves = mix.shape[0] != mix.shape[1]
        y = F.conv2d(x, weights[f"{name}.depthwise.weight"], stride=2 if halves else 1, padding=1, groups=x.shape[1])
        y = (F.relu(norm(y.permute(0, 2, 3, 1), weights, f"{name}.norm")) @ mix + bias).permute(0, 3, 1, 2)
        x, block = y if halves else x + y, block + 1
    return norm(x.mean((2, 3)), weights, "norm") @ weights["head.weight"] + weights["head.bias"]


def main():
    with safe_open(sys.argv[1], "pt") as file:
        weights = {name: file.get_tensor(name).float() for name in file.keys()}
        about = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
    channels, height, width = about["picture_shape"]
    mean, std = (numpy.array(about[name], dtype=numpy.float32) for name in ("pixel_mean", "pixel_std"))
    for path in sys.argv[2:]:
        picture = Image.open(path).convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
        pixels = numpy.asarray(picture, dtype=numpy.float32).reshape(height, width, channels)
        batch = torch.from_numpy((pixels - mean) / std).permute(2, 0, 1)[None]
        share, answer = network(weights, batch).softmax(1)[0].max(0)
        print(f"{path}: {about['classes'][answer]} ({share:.1%})")


if __name__ == "__main__":
    main()

"""Samples of a training: a text or a picture for each step that makes one, in the run's folder `samples`."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import zlib

from downshift_cockpit import wire
from downshift_cockpit.excepthook import ConfigError


def write(folder, step, text=None, image=None):
    """Writes one sample, and returns its path."""
    if (text is None) == (image is None):
        raise ConfigError("run.sample takes either text or image")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    path = _free_path(folder, step, ".txt" if text is not None else ".png")
    # A reader sees all of it or nothing.
    draft = os.path.join(folder, ".{}.{}".format(os.getpid(), os.path.basename(path)))
    try:
        _write(draft, text, image)
        os.replace(draft, path)
    except BaseException:
        if os.path.lexists(draft):
            os.unlink(draft)
        raise
    return path


def _write(path, text, image):
    if text is not None:
        with open(path, "w", encoding="utf-8", opener=wire.own_file) as file:
            file.write(str(text))
    elif hasattr(image, "save"):
        image.save(path)
    elif isinstance(image, (str, os.PathLike)):
        shutil.copyfile(image, path)
    else:
        with open(path, "wb", opener=wire.own_file) as file:
            file.write(png(*_pixels(image)))


def _free_path(folder, step, ending):
    number = 0
    while True:
        name = "step-{:09}{}{}".format(step, "-{}".format(number) if number else "", ending)
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            return path
        number += 1


def _pixels(image):
    """Returns (width, height, channels, bytes) of a tensor or array: height × width, with channels first or last."""
    torch = sys.modules["torch"]
    pixels = torch.as_tensor(image).detach().cpu()
    if pixels.dim() == 2:
        pixels = pixels[None]
    if pixels.dim() == 3 and pixels.shape[0] not in (1, 3, 4) and pixels.shape[2] in (1, 3, 4):
        pixels = pixels.permute(2, 0, 1)
    if pixels.dim() != 3 or pixels.shape[0] not in (1, 3, 4):
        raise ConfigError("run.sample cannot draw an image of shape {}".format(list(pixels.shape)))
    if pixels.is_floating_point():
        pixels = (pixels.float().nan_to_num().clamp(0, 1) * 255).round()
    pixels = pixels.to(torch.uint8).permute(1, 2, 0).contiguous()
    return pixels.shape[1], pixels.shape[0], pixels.shape[2], bytes(pixels.flatten().tolist())


def png(width, height, channels, data):
    """Returns a PNG of 8-bit grey, RGB or RGBA pixels."""
    color = {1: 0, 3: 2, 4: 6}[channels]
    row = width * channels
    lines = b"".join(b"\0" + data[at : at + row] for at in range(0, height * row, row))
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def _chunk(part):
    kind, data = part
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

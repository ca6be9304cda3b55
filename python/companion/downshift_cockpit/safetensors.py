"""Files of tensors in the safetensors format, written from one kept buffer and read back. Standard library only."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys

HEADER_LIMIT = 100_000_000
CHUNK = 16 << 20
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip


class FormatError(ValueError):
    """A file that is not what it should be, or a tensor that the format cannot hold."""


def _dtypes():
    torch = sys.modules["torch"]
    return {word: getattr(torch, name) for word, name in _NAMES.items() if hasattr(torch, name)}


class Layout:
    """Places tensors of known types and shapes in one buffer, without gaps and each aligned to its own type."""

    def __init__(self, tensors):
        words = {dtype: word for word, dtype in _dtypes().items()}
        self.shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        self.header, self.places, offset = {}, {}, 0
        for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
            tensor = tensors[name]
            if tensor.dtype not in words:
                raise FormatError("`{}` has the type {}, which safetensors cannot hold".format(name, tensor.dtype))
            size = tensor.numel() * tensor.element_size()
            places = {"dtype": words[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
            self.header[name] = places
            self.places[name] = (offset, size)
            offset += size
        self.size = offset

    def fits(self, tensors):
        """Reports whether tensors have exactly the names, types and shapes of this layout."""
        return self.shapes == {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


class Buffer:
    """Host memory for the tensors of one file. It is kept: the first touch of fresh memory costs many copies."""

    def __init__(self, tensors):
        torch = sys.modules["torch"]
        self.layout = Layout(tensors)
        self.pinned = any(tensor.is_cuda for tensor in tensors.values())
        try:
            self.bytes = torch.empty(self.layout.size, dtype=torch.uint8, pin_memory=self.pinned)
        except RuntimeError:
            self.pinned = False
            self.bytes = torch.empty(self.layout.size, dtype=torch.uint8)
        self.views = {}
        for name, (offset, size) in self.layout.places.items():
            dtype, shape = self.layout.shapes[name]
            self.views[name] = self.bytes[offset : offset + size].view(dtype).view(shape)

    def copy_from(self, tensors):
        """Copies the values. Into pinned memory they arrive once the device is synchronised."""
        for name, tensor in tensors.items():
            self.views[name].copy_(tensor, non_blocking=self.pinned)

    def write(self, path):
        """Writes the file."""
        header = json.dumps(self.layout.header, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        with open(path, "xb", buffering=0) as file:
            write_all(file, struct.pack("<Q", len(header)) + header)
            if self.layout.size:
                write_all(file, (ctypes.c_ubyte * self.layout.size).from_address(self.bytes.data_ptr()))


def write_all(file, data):
    """Writes all bytes to an unbuffered file; a write may take only a part."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest[:CHUNK]) :]


def read(path):
    """Returns the tensors of a file, by name, each in memory of its own: torch relies on its alignment."""
    torch, dtypes, tensors = sys.modules["torch"], _dtypes(), {}
    with open(path, "rb", buffering=0) as file:
        total = os.fstat(file.fileno()).st_size
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))[0]
        if length > min(HEADER_LIMIT, total - 8):
            raise FormatError("{} is not a safetensors file".format(path))
        header = bytearray(length)
        _fill(file, header, path)
        for name, place in json.loads(header).items():
            if name == "__metadata__":
                continue
            (begin, end), dtype = place["data_offsets"], dtypes.get(place["dtype"])
            if dtype is None or not 0 <= begin <= end <= total - 8 - length:
                raise FormatError("{}: `{}` has a type or place that cannot be read".format(path, name))
            data = torch.empty(end - begin, dtype=torch.uint8)
            if end > begin:
                file.seek(8 + length + begin)
                _fill(file, (ctypes.c_ubyte * (end - begin)).from_address(data.data_ptr()), path)
            tensors[name] = data.view(dtype).view(place["shape"])
    return tensors


def _fill(file, target, path):
    rest = memoryview(target).cast("B")
    while rest:
        count = file.readinto(rest[:CHUNK])
        if not count:
            raise FormatError("{} is shorter than it was".format(path))
        rest = rest[count:]

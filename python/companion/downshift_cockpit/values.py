"""State as JSON beside tensors: what a `state_dict` holds, without pickle.

A tensor becomes `{"tensor": name}`. Other values that JSON lacks are objects of one key too: tuple, map (a dict whose
keys are not all strings), counter, float (NaN and the infinities), bytes, array (of NumPy), shard (a rank's part of a
tensor that is spread over the ranks).
"""

from __future__ import annotations

import collections
import math
import sys

from downshift_cockpit import ranks

_MARKS = ("tensor", "tuple", "map", "counter", "float", "bytes", "array", "shard")


class ValueNotKept(TypeError):
    """A value that only pickle could keep."""


class Shard:
    """A rank's part of a tensor, and the shape of the whole one."""

    def __init__(self, part, shape):
        self.part = part
        self.shape = shape


class Encoder:
    """Turns values into JSON, and collects their tensors by name; each storage is collected once."""

    def __init__(self):
        self.tensors = {}
        self._names = {}

    def encode(self, value, path):
        """Returns `value` as JSON. `path` names it, and the tensors within."""
        torch = sys.modules["torch"]
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if ranks.is_shard(value):
            part = {"tensor": self.collect(value.detach().to_local(), path)}
            return {"shard": {"part": part, "shape": list(value.shape)}}
        if isinstance(value, torch.Tensor):
            return {"tensor": self.collect(value.detach(), path)}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": self.collect(_tensor_of_bytes(value), path)}
        if isinstance(value, collections.Counter):
            return {"counter": self._pairs(value, path)}
        if isinstance(value, dict):
            if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)) in _MARKS):
                return {key: self.encode(item, "{}.{}".format(path, key)) for key, item in value.items()}
            return {"map": self._pairs(value, path)}
        if isinstance(value, (list, tuple, collections.deque)):
            items = [self.encode(item, "{}.{}".format(path, index)) for index, item in enumerate(value)]
            return {"tuple": items} if isinstance(value, tuple) else items
        return self._encode_numpy(value, path)

    def collect(self, tensor, name):
        """Keeps a tensor, and returns the name under which it is kept: that of its twin if it shares all its memory."""
        torch = sys.modules["torch"]
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise ValueNotKept("{} is a tensor of a kind that cannot be kept ({})".format(name, tensor.layout))
        place = None
        if tensor.numel():
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._names.get(place) if place else None
        if known is not None:
            return known
        if name in self.tensors:
            raise ValueNotKept("two different tensors are called `{}`".format(name))
        self.tensors[name] = tensor
        if place:
            self._names[place] = name
        return name

    def _pairs(self, value, path):
        return [[self.encode(key, path), self.encode(item, "{}.{}".format(path, key))] for key, item in value.items()]

    def _encode_numpy(self, value, path):
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
            return self.encode(value.item(), path)
        if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
            kept = {"dtype": value.dtype.str, "shape": list(value.shape)}
            return {"array": dict(kept, data=self.collect(_tensor_of_bytes(value.tobytes()), path))}
        kind = type(value)
        raise ValueNotKept("{} is a {}.{}, which cannot be kept without pickle".format(path, kind.__module__, kind.__qualname__))


def decode(value, tensors):
    """Returns the value that `Encoder.encode` turned into JSON."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)) in _MARKS:
        return _decode_mark(next(iter(value)), next(iter(value.values())), tensors)
    return {key: decode(item, tensors) for key, item in value.items()}


def _decode_mark(mark, value, tensors):
    if mark == "tensor":
        return tensors[value]
    if mark == "shard":
        return Shard(decode(value["part"], tensors), tuple(value["shape"]))
    if mark == "tuple":
        return tuple(decode(item, tensors) for item in value)
    if mark == "float":
        return float(value)
    if mark == "bytes":
        return bytes(tensors[value].tolist())
    if mark == "array":
        import numpy

        data = bytes(tensors[value["data"]].tolist())
        return numpy.frombuffer(data, dtype=value["dtype"]).reshape(value["shape"]).copy()
    pairs = {decode(key, tensors): decode(item, tensors) for key, item in value}
    return collections.Counter(pairs) if mark == "counter" else pairs


def _tensor_of_bytes(data):
    torch = sys.modules["torch"]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)

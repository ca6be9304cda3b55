"""The order of the samples, and the seed of each: functions of (seed, epoch, index) that need no memory.

A position maps to a sample through a permutation of eight keyed rounds (a Feistel network over two digits). It is
computed for a block of positions at once, so a run continues at any sample of an epoch of any size at no cost. Only
integers below 2^62 occur: every version of torch on every machine gives the same order.
"""

from __future__ import annotations

import hashlib
import math
import sys

ROUNDS = 8
BLOCK = 8192
_BITS = (1 << 31) - 1
_MULTIPLIERS = (0x5851F42D & _BITS, 0x2C1B3C6D)


def derive(*parts):
    """Returns 64 bits that depend on all parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class Order:
    """The order of one epoch: position → index. Without `shuffle`, the order of the data set."""

    def __init__(self, count, seed, epoch, shuffle=True):
        self.count = count
        self.shuffle = shuffle and count > 1
        self.high = math.isqrt(max(count - 1, 0)) + 1
        self.low = -(-count // self.high)
        self.keys = [derive(seed, "order", epoch, number) & _BITS for number in range(ROUNDS)]
        self._begin = 0
        self._block = []

    def indices(self, begin, end):
        """Returns the indices at the positions from `begin` to before `end`."""
        if not self.shuffle:
            return list(range(begin, end))
        found = []
        while begin < end:
            offset = begin - self._begin
            if not 0 <= offset < len(self._block):
                self._begin, offset = begin, 0
                self._block = self._compute(begin, min(begin + BLOCK, self.count))
            part = self._block[offset : offset + end - begin]
            found += part
            begin += len(part)
        return found

    def _compute(self, begin, end):
        import torch

        values = self._permute(torch.arange(begin, end, dtype=torch.int64))
        # The two digits span a little more than the epoch: a value beyond its end is permuted again, until it is not.
        outside = (values >= self.count).nonzero().flatten()
        while len(outside):
            again = self._permute(values[outside])
            values[outside] = again
            outside = outside[again >= self.count]
        return values.tolist()

    def _permute(self, values):
        high, low = values // self.low, values % self.low
        for number in range(0, ROUNDS, 2):
            high = (high + _mix(low, self.keys[number])) % self.high
            low = (low + _mix(high, self.keys[number + 1])) % self.low
        return high * self.low + low


def _mix(values, key):
    """Mixes the bits of numbers (tensors or ints) below 2^31."""
    values = (values + key) & _BITS
    for multiplier in _MULTIPLIERS:
        values = values ^ (values >> 15)
        values = (values * multiplier) & _BITS
    return values ^ (values >> 16)


def torch_seed():
    """Returns the seed that torch was given, in the 32 bits that every library takes; a random one if the script sets none."""
    return sys.modules["torch"].initial_seed() & 0xFFFFFFFF


def seed_libraries(key):
    """Seeds Python, NumPy (if the script uses it) and torch from 64 bits, each with its own stream."""
    import random

    random.seed(key)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((key * 0x9E3779B1 >> 16) & 0xFFFFFFFF)
    sys.modules["torch"].default_generator.manual_seed(key ^ 0x5DEECE66D)


def hash_indices(pairs):
    """Returns a hash of sample ids, (epoch, index) each, in their order."""
    return hashlib.blake2b(repr(list(pairs)).encode(), digest_size=16).hexdigest()

"""Random states of Python, NumPy, torch on the CPU and torch on each CUDA device: read and put back."""

from __future__ import annotations

import hashlib
import random
import sys


def capture_host():
    """Returns the states that a data set may draw from, to be put back by `restore_host`."""
    numpy, torch = sys.modules.get("numpy"), sys.modules["torch"]
    return (random.getstate(), None if numpy is None else numpy.random.get_state(), torch.get_rng_state())


def restore_host(states):
    """Puts back the states of `capture_host`."""
    python, numpy_state, torch_state = states
    random.setstate(python)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
    sys.modules["torch"].set_rng_state(torch_state)


def capture():
    """Returns all random states as plain values and tensors."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    states = {"python": random.getstate(), "torch": torch.get_rng_state(), "numpy": None, "cuda": []}
    if numpy is not None:
        states["numpy"] = numpy.random.get_state(legacy=False)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore(states):
    """Puts back all random states. Returns a clause that says what could not be put back, or none."""
    torch = sys.modules["torch"]
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if states["numpy"] is not None:
        import numpy

        numpy.random.set_state(states["numpy"])
    cuda = states["cuda"]
    if not cuda:
        return None
    if not torch.cuda.is_available() or torch.cuda.device_count() != len(cuda):
        return "the random states of {} CUDA devices could not be put back".format(len(cuda))
    torch.cuda.set_rng_state_all(cuda)
    return None


def fingerprint():
    """Returns hashes of the random states, joined by `-`: Python, NumPy, torch and each CUDA device. They are apart because
    a script may use one without ever seeding another."""
    states = capture()
    numpy = states["numpy"]
    if numpy is not None:
        inner = numpy["state"]
        numpy = (inner["pos"], inner["key"].tobytes()) if "key" in inner else inner
    parts = [repr(states["python"]).encode(), repr(numpy).encode()]
    parts += [bytes(state.tolist()) for state in [states["torch"]] + list(states["cuda"])]
    return "-".join(hashlib.blake2b(part, digest_size=8).hexdigest() for part in parts)

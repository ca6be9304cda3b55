"""Faults on order (`--inject oom@150,nan@10*`), real ones: an exception of torch, a NaN in a gradient, a hang."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

from downshift_cockpit import ranks

_FORM = re.compile(r"(nan|oom|panic|exit0|kill|hang|slow)@([1-9][0-9]*)(?:-([1-9][0-9]*))?\*?$")


class InjectedFault(RuntimeError):
    """The exception of the fault `panic`."""


class Due:
    """The faults of one step that do not end it: the caller makes them."""

    __slots__ = ("nan", "slow")

    def __init__(self, nan=False, slow=False):
        self.nan = nan
        self.slow = slow


NOTHING = Due()


class Faults:
    """The faults ordered for this attempt. Of several ranks, rank 0 has them; only a NaN strikes all, because each holds
    the gradient of all."""

    def __init__(self, texts, send, flush, rank=0):
        self._rank = rank
        self._send = send
        self._flush = flush
        self._faults = []
        for text in texts:
            found = _FORM.match(text)
            if found is not None:
                first = int(found.group(2))
                self._faults.append((found.group(1), first, int(found.group(3) or first), text))
        self._announced = set()

    @classmethod
    def of(cls, companion, rank=0):
        """Returns the faults of this attempt; none without a companion."""
        if companion is None:
            return cls([], None, None)
        return cls(companion.inject, companion.send, companion.flush, rank)

    def strike(self, step):
        """Makes the faults that are due at the step about to be taken. Those that end it do not return."""
        if not self._faults:
            return NOTHING
        due = Due()
        for fault, first, last, text in self._faults:
            if not first <= step <= last or (self._rank and fault != "nan"):
                continue
            if text not in self._announced and self._rank == 0:
                self._announced.add(text)
                self._send({"event": "injected", "fault": text, "step": step})
            if fault == "nan":
                due.nan = True
            elif fault == "slow":
                due.slow = True
            else:
                # Announced before it happens, or the next attempt would meet it again.
                self._flush(5.0)
                _carry_out(fault)
        return due


def _carry_out(fault):
    if fault == "oom":
        error = out_of_memory_class()("Tried to allocate 64.00 GiB (requested with --inject)")
        error.downshift_injected = True
        raise error
    if fault == "panic":
        error = InjectedFault("requested with --inject")
        error.downshift_injected = True
        raise error
    if fault == "exit0":
        raise SystemExit(0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(3600)


def out_of_memory_class():
    """Returns torch's class of errors for a device that is out of memory."""
    torch = sys.modules["torch"]
    return getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


def poison(parameters):
    """Writes a NaN into the first gradient."""
    for parameter in parameters:
        grad = ranks.local(parameter.grad)
        if grad is not None and grad.numel():
            grad[(0,) * grad.dim()] = float("nan")
            return

"""The place of this rank in the training, in a file that the harness reads: step, phase, times, loss, memory.

With many ranks, a message at each change would cost more than the rest of the companion. A write to a file of a few bytes
wakes nobody and waits for nobody, and the file still says where a process stands that hangs. The format is that of
`harness/rank_files.rs`.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import time

DATA, COMPUTE, REDUCTION, SCRIPT, EVALUATING, SAVING, ENDED, TRAINING = range(8)

# Version, number of the write, step, phase, since when; steps and the time in each phase; losses: number, newest, sum, sum of
# squares, first bad step; memory: allocated, reserved, card; number of the write again.
LAYOUT = struct.Struct("<QQQQdQ8dQdddQQQqQ")
VERSION = 1
MEMORY_SECONDS = 1.0
# For as many steps the first bad one is kept.
BAD_STEPS = 200


class RankFile:
    """The file of this rank."""

    def __init__(self, socket, rank):
        # Beside the socket, which is in memory: a disk may be slow or full.
        self.path = "{}.rank-{}.{}".format(socket, rank, os.getpid())
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()
        self._writes = self._step = self._steps = 0
        self._phase, self._since = SCRIPT, time.monotonic()
        self._spent = [0.0] * 8
        self._losses, self._loss, self._sum, self._squares, self._bad = 0, math.nan, 0.0, 0.0, 0
        self._memory, self._measured = (0, 0, -1), -math.inf
        self._write()

    def enter(self, phase):
        """Records that the rank does something else now."""
        now = time.monotonic()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now
        if now - self._measured >= MEMORY_SECONDS:
            self._memory, self._measured = _measure_memory(), now
        self._write()

    def took(self, step, loss):
        """Records a step and this rank's own loss, without a write: the next phase follows at once."""
        self._step = step
        self._steps += 1
        if loss is None:
            return
        if math.isfinite(loss):
            self._losses += 1
            self._loss = loss
            self._sum += loss
            self._squares += loss * loss
        elif not self._bad or step - self._bad >= BAD_STEPS:
            self._bad = step

    def resume(self, step):
        """Records the step that the training goes on from."""
        self._step = step

    def _write(self):
        self._writes += 1
        record = LAYOUT.pack(
            VERSION, self._writes, self._step, self._phase, self._since, self._steps, *self._spent,
            self._losses, self._loss, self._sum, self._squares, self._bad, *self._memory, self._writes,
        )  # fmt: skip
        try:
            if os.getpid() == self._pid:
                os.pwrite(self._file, record, 0)
        except OSError:
            # The display alone needs it.
            pass


class NoFile:
    """Stands for the file of a process that is alone, or that nobody watches."""

    path = None

    def enter(self, phase):
        """Records nothing."""

    def took(self, step, loss):
        """Records nothing."""

    def resume(self, step):
        """Records nothing."""


def open_for(companion, rank, world):
    """Returns the file of this rank; one that records nothing where there is a single rank or no harness."""
    if companion is None or world == 1:
        return NoFile()
    try:
        return RankFile(companion.settings["socket"], rank)
    except (OSError, KeyError, TypeError):
        return NoFile()


def watch_reduction(loss, file):
    """Records when the backward pass of this loss is done with its own work and waits for the other ranks.

    A callback that is queued at the start of the pass runs before the one by which DistributedDataParallel waits for the
    reduction. It changes nothing in the graph.
    """
    engine = sys.modules["torch"].autograd.Variable._execution_engine
    loss.register_hook(lambda _: engine.queue_callback(lambda: file.enter(REDUCTION)))


def _measure_memory():
    """Returns bytes allocated and reserved on the card of this rank, and its index; (0, 0, -1) without one."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return 0, 0, -1
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), _card(torch.cuda.current_device())
    except Exception:
        return 0, 0, -1


def _card(index):
    """Returns the index of a card among all of the machine, as far as the variable names them by number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible:
        return index
    try:
        return int(visible.split(",")[index])
    except (ValueError, IndexError):
        return index

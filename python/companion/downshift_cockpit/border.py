"""Decides at each step border whether to save and whether to stop: orders of the harness, the rhythm, several ranks.

With several ranks, rank 0 alone hears orders. It writes its decision for the border of the next step into a file of the
attempt, which every rank reads there: a rank can only reach that border after rank 0 joined the step's reduction. So the
ranks agree without a collective of their own, and no rank can be past the step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

from downshift_cockpit import wire

FILE = "border.json"


class Agreement:
    """Decisions (save, stop) that all ranks of a training make at the same step."""

    def __init__(self, folder, rank, world):
        self._rank, self._world = rank, world
        self._file = os.path.join(folder or ".", FILE)
        if world > 1 and rank == 0:
            # Empties what an earlier process of the attempt left; nobody reads before rank 0 has joined the first reduction.
            with contextlib.suppress(OSError):
                open(self._file, "w", opener=wire.own_file).close()

    def decide(self, step, plan):
        """Returns (save, stop) for the border after `step`. `plan` decides about a step, on rank 0 alone."""
        if self._world == 1:
            return plan(step)
        decision = self._read(step)
        if self._rank == 0 and decision == (False, False):
            save, stop = plan(step + 1)
            if save or stop:
                self._write(step + 1, save, stop)
        return decision

    def _write(self, step, save, stop):
        # In place: on NFS, another node may look for a new file of the same name half a minute later. Nobody needs what is
        # written before the border of `step`, so half of it is read as no decision.
        with open(self._file, "w", encoding="utf-8", opener=wire.own_file) as file:
            json.dump({"step": step, "save": save, "stop": stop}, file)

    def _read(self, step):
        try:
            with open(self._file, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return False, False
        if found.get("step") != step:
            return False, False
        return bool(found.get("save")), bool(found.get("stop"))


def hear(companion):
    """Returns (save, stop) as the harness has ordered since the last border."""
    save = stop = False
    order = companion.take_order()
    while order is not None:
        kind = order.get("order")
        stop = stop or kind == "stop"
        save = save or kind == "checkpoint" or (kind == "stop" and bool(order.get("checkpoint")))
        order = companion.take_order()
    return save, stop


class Border:
    """The decisions of one training of a framework."""

    def __init__(self, companion, rank=0, world=1, step=0):
        self.terminated = False
        self._companion = companion
        self._agreement = Agreement(companion.attempt_dir, rank, world)
        self._every_steps = companion.checkpoint.get("every_steps")
        self._every_seconds = companion.checkpoint.get("every_seconds")
        self._last_step, self._last_time = step, time.monotonic()
        self._handler = None

    def decide(self, step):
        """Returns (save, stop) for the border after `step`."""
        return self._agreement.decide(step, lambda _: self._hear(step))

    def saved(self, step):
        """Starts the rhythm anew: a checkpoint of `step` exists, whoever asked for it."""
        self._last_step, self._last_time = step, time.monotonic()

    def notice_sigterm(self):
        """Notices SIGTERM where the script ends the training on it, so that this does not count as a normal end."""
        handler = signal.getsignal(signal.SIGTERM)
        if not callable(handler) or handler is self._handler:
            return
        if threading.current_thread() is not threading.main_thread():
            return

        def notice(number, frame):
            self.terminated = True
            return handler(number, frame)

        self._handler = notice
        signal.signal(signal.SIGTERM, notice)

    def _hear(self, step):
        save, stop = hear(self._companion)
        return save or (not stop and self._is_due(step)), stop

    def _is_due(self, step):
        if self._every_steps and step - self._last_step >= self._every_steps:
            return True
        return bool(self._every_seconds) and time.monotonic() - self._last_time >= self._every_seconds

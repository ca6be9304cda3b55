"""Saves: copied on the training thread, written in the background, published by the harness."""

from __future__ import annotations

import os
import shutil
import threading
import time

from downshift_cockpit import best, blame, rank_file, values, wire
from downshift_cockpit.safetensors import FormatError


class Saver:
    """Writes containers into the staging folder, one at a time."""

    def __init__(self, companion, capture, resumed_from, ranks):
        self._companion = companion
        self._ranks = ranks
        self._capture = capture
        self._every_steps = companion.checkpoint.get("every_steps")
        self._every_seconds = companion.checkpoint.get("every_seconds")
        # Ranks save at a step that they agreed on before it began, so none can follow from an evaluation after it.
        self._best = None if ranks.are_several else best.Best.of(companion)
        self._is_best = False
        self._since = time.monotonic()
        self._last = self._durable = resumed_from
        # The step whose outcome is not known yet.
        self._pending = None
        self._writer = None
        self._error = None
        self.can_save = True

    def check(self, header):
        """Returns why this state cannot be saved, or none."""
        try:
            self._capture.check(header)
        except (values.ValueNotKept, FormatError) as error:
            self.can_save = False
            return str(error)
        return None

    def is_due(self, step):
        """Reports whether to save after `step`: its evaluation is the best, or a save by rhythm is due and the last one
        is written."""
        if not self.can_save or self._last == step:
            return False
        if self._is_best:
            return True
        if self.is_writing():
            return False
        every = self._every_steps
        if every and step // every > (self._last or 0) // every:
            return True
        return bool(self._every_seconds) and time.monotonic() - self._since >= self._every_seconds

    def evaluated(self, loss, metrics):
        """Takes in an evaluation of the present weights: the best ones are saved before the next step changes them."""
        if self._best is not None and self._best.beats(loss, metrics):
            self._is_best = True

    def is_writing(self):
        """Reports whether a save is being written."""
        return self._writer is not None and self._writer.is_alive()

    def begin(self, step, samples, header):
        """Copies the state, and writes it in the background."""
        self.wait_written()
        begun = time.perf_counter()
        self._ranks.file.enter(rank_file.SAVING)
        self._send_phase("checkpointing")
        self._since, self._error, self._is_best = time.monotonic(), None, False
        self._last = self._pending = step
        try:
            self._capture.take(header)
        except Exception as error:
            blame.take(error)
            self._fail(step, error)
            return
        finally:
            self._send_phase("training")
        pause_ms = (time.perf_counter() - begun) * 1e3
        self._writer = threading.Thread(target=self._write, args=(step, samples, pause_ms), name="downshift-save")
        self._writer.start()

    def request(self, step, samples, header):
        """Saves in the background, unless this step is saved already."""
        if self.can_save and step != self._last:
            self.begin(step, samples, header)

    def save(self, step, samples, header):
        """Saves, and waits until the container is published. Repeats a save of this step that has failed. Returns none, or
        why the container is not published."""
        if not self.can_save:
            return "the state of this training cannot be saved"
        if step == self._durable:
            return None
        self._ranks.file.enter(rank_file.SAVING)
        if self._pending == step and self._wait_published(step) is None:
            return None
        self.begin(step, samples, header)
        return self._wait_published(step)

    def wait_written(self):
        """Waits until the save in flight is written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _wait_published(self, step):
        self.wait_written()
        # Of several ranks, one that could not write waits too: all hear the outcome, and save again or not alike.
        failure = None if self._ranks.are_several else self._error
        failure = failure or self._companion.wait_published(step)
        self._pending = None
        if failure is None:
            self._durable = step
        return failure

    def _write(self, step, samples, pause_ms):
        # Another process of the same command may save the same step.
        name = ".new-step-{:09}.{}".format(step, self._companion.process)
        folder = os.path.join(self._companion.staging, name)
        try:
            if os.path.lexists(folder):
                shutil.rmtree(folder)
            self._capture.write(folder)
        except Exception as error:
            self._fail(step, error)
            shutil.rmtree(folder, ignore_errors=True)
            return
        staged = {"event": "staged", "step": step, "samples": samples, "folder": name, "pause_ms": pause_ms}
        self._companion.send(staged)

    def _send_phase(self, phase):
        if self._ranks.rank == 0:
            self._companion.send({"event": "phase", "phase": phase})

    def _fail(self, step, error):
        self._error = blame.NotSaved(wire.describe(error), blame.is_of_disk(error))
        event = {"event": "save_failed", "step": step, "message": self._error}
        if self._error.of_disk:
            event["of_disk"] = True
        self._companion.send(event)

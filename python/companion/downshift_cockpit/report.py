"""Reports of a framework's hooks: who speaks, the hello, and the events of one training.

Frameworks nest: the Hugging Face Trainer uses accelerate, which uses torch's optimizers. Only the outermost speaks. A
script may train more than once in one process: the steps of a later training count on.
"""

from __future__ import annotations

import gc
import os
import platform
import sys

from downshift_cockpit import blame, rank_file, stacks, standby

# The outermost frameworks own a training from its first line to its last. The others only see optimizer steps.
OWNERS = ("loop", "transformers", "lightning")
OBSERVERS = ("torch", "accelerate")

_owner = None
_observer = None
_trainings = 0
_steps_before = 0
_samples_before = 0


def claim(framework):
    """Makes a framework the owner of the training that begins. Reports whether it is; `release` ends it."""
    global _owner
    if _owner is not None:
        return False
    _owner = framework
    return True


def release(framework):
    """Ends the ownership of a framework."""
    global _owner
    if _owner == framework:
        _owner = None


def is_owned():
    """Reports whether a training with an owner runs."""
    return _owner is not None


def observes(framework):
    """Reports whether an observer is the outermost framework, for a step that it sees now."""
    global _observer
    if _owner is not None:
        return False
    if _observer is None or OBSERVERS.index(framework) > OBSERVERS.index(_observer):
        _observer = framework
    return _observer == framework


def next_training():
    """Returns the number of the training that begins, from 0."""
    global _trainings
    _trainings += 1
    return _trainings - 1


def find_rank():
    """Returns the rank of this process and the number of ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def count_parameters(parameters):
    """Returns the number of trainable values."""
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def stop_process():
    """Ends the script at its step border. 75 says: stopped on request, to be continued."""
    # Python's last collection walks through a million objects of torch, for a second: they end with the process anyway.
    gc.freeze()
    raise SystemExit(75)


class Report:
    """The events of one training. Ranks other than 0 send their hello only."""

    def __init__(self, companion, framework, version=None):
        self.companion = companion
        self.framework = framework
        self.version = version
        self.rank, self.world = find_rank()
        self.muted = False
        self.step_offset, self.sample_offset = _steps_before, _samples_before
        self.last_step, self.last_samples = _steps_before, _samples_before
        self._hello = None
        self.file = rank_file.NoFile()

    def hello(self, **values):
        """Introduces the training: sent again only when a value changed."""
        hello = {
            "event": "companion", "protocol": 1, "pid": os.getpid(), "rank": self.rank, "world": self.world,
            "python": platform.python_version(), "torch": version_of("torch"), "framework": self.framework,
            "version": self.version, "grade": "none", "reason": None, "saves": False, "guards": False,
            "parameters": None, "resumed_from": None, "samples": 0, "total_steps": None, "epoch_units": None,
            "total_units": None, "unit": "samples", "knobs": {}, "measured": [], "counts_skips": False,
        }  # fmt: skip
        hello.update(values)
        for name, offset in (("total_steps", self.step_offset), ("total_units", self.sample_offset)):
            if hello[name] is not None:
                hello[name] += offset
        hello["samples"] = (hello["samples"] or 0) + self.sample_offset
        hello["stacks_signal"], hello["stacks_file"] = stacks.register(self.companion)
        if self.world > 1 and self._hello is None and not self.muted:
            self.file = rank_file.open_for(self.companion, self.rank, self.world)
            self.file.resume((hello["resumed_from"] or 0) + self.step_offset)
            self.enter(rank_file.SCRIPT)
        hello["rank_file"] = self.file.path
        if hello != self._hello and not self.muted:
            self._hello = hello
            self.companion.send(hello)

    def enter(self, phase):
        """Records what this rank does now; an observer of optimizer steps cannot know it."""
        self.file.enter(phase if self.framework in OWNERS else rank_file.TRAINING)

    def step(self, step, samples, **values):
        """Reports a step that was taken."""
        self.file.took(step + self.step_offset, values.get("loss"))
        self.enter(rank_file.SCRIPT)
        self._send_at("step", step, samples, values)

    def skipped(self, step, samples, **values):
        """Reports a step with a NaN or infinite value."""
        self.file.took(step + self.step_offset, float("nan") if values.get("what") == "loss" else None)
        self.enter(rank_file.SCRIPT)
        self._send_at("skipped", step, samples, values)

    def eval(self, step, samples, loss, metrics):
        """Reports an evaluation."""
        self._send_at("eval", step, samples, {"loss": loss, "metrics": metrics})

    def loaded(self, files, optimizer_steps, restored):
        """Reports what the process had loaded before its first step."""
        event = {"event": "loaded", "files": files, "optimizer_steps": optimizer_steps, "restored": restored}
        self._send(event)

    def wrote(self, step, samples, path):
        """Reports that the framework's checkpoint is complete."""
        self._send_at("wrote", step, samples, {"path": os.path.abspath(path)})

    def phase(self, phase):
        """Reports another phase: `training`, `evaluating`, `checkpointing`."""
        self.enter({"evaluating": rank_file.EVALUATING, "checkpointing": rank_file.SAVING}.get(phase, rank_file.SCRIPT))
        self._send({"event": "phase", "phase": phase})

    def save_failed(self, step, error):
        """Reports a save that failed; the training goes on."""
        event = {"event": "save_failed", "step": step + self.step_offset, "message": str(error)}
        if blame.is_of_disk(error):
            event["of_disk"] = True
        self._send(event)

    def stop_refused(self, step, message):
        """Reports that the training goes on although it should save and end, since it could not save."""
        self._send({"event": "stop_refused", "step": step + self.step_offset, "message": message})

    def stopping(self, step, saved):
        """Reports that the training ends now because it was asked to, and waits until that is sent."""
        self._send({"event": "stopping", "step": step + self.step_offset, "saved": saved})
        self.companion.flush()

    def ended(self, step):
        """Reports that the training reached its own last step."""
        self.file.enter(rank_file.ENDED)
        self._send({"event": "ended", "step": step + self.step_offset})

    def fingerprint(self, step, ids, rate, scale):
        """Reports, in a trial, what must be equal in two runs: the samples, the random states, rate and scale."""
        if self.companion.trial:
            from downshift_cockpit import random_state

            random = random_state.fingerprint()
            self._send_at("fingerprint", step, None, {"ids": ids, "random": random, "lr": rate, "scale": scale})

    def record_modules(self):
        """Records the imported packages for the standby of the next attempt."""
        if self.companion.modules and self.rank == 0:
            standby.record(self.companion.modules)

    def resumed_from(self, chosen, step):
        """Returns the step from which a framework goes on: of the checkpoint that was chosen for it, or of another one that
        the script gave it instead."""
        is_own = chosen is None and self.companion.resume and not self.step_offset
        return step or None if is_own else chosen

    def finish(self):
        """Lets the next training of this process count on."""
        global _steps_before, _samples_before
        _steps_before, _samples_before = self.last_step, self.last_samples

    def _send_at(self, kind, step, samples, values):
        event = {"event": kind, "step": step + self.step_offset}
        if samples is not None:
            event["samples"] = samples + self.sample_offset
            self.last_samples = max(self.last_samples, event["samples"])
        self.last_step = max(self.last_step, event["step"])
        event.update((name, value) for name, value in values.items() if value is not None)
        self._send(event)

    def _send(self, event):
        if self.rank == 0 and not self.muted:
            self.companion.send(event)


def version_of(name):
    """Returns the version of a library that is imported, or none."""
    return getattr(sys.modules.get(name), "__version__", None)

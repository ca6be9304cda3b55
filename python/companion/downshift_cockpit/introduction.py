"""The speaker of a plain loop, and the events that describe it to the harness."""

from __future__ import annotations

import math
import os
import platform
import sys

from downshift_cockpit import order, random_state, report, wire

_has_attached = False


def take_companion():
    """Returns the companion for the first training of this process that no framework owns; none for others."""
    global _has_attached
    companion = wire.companion()
    if not report.claim("loop"):
        return None
    if _has_attached and companion is not None:
        companion.note("downshift.attach was called again: only the first training of a process is kept")
        return None
    _has_attached = True
    return companion


def describe_source(source, position, step, obstacle, other_world):
    """Returns the part of `companion` that the data and this process decide. `obstacle`: why nothing can be saved.
    `other_world`: the number of ranks that wrote the checkpoint, if it is another one."""
    epochs, units = source.settings.epochs, source.epoch_units
    grade, reason = source.grade, source.reason
    if other_world:
        grade = "same_data"
        reason = "the checkpoint is of {} ranks: other micro-batches and random numbers than there".format(other_world)
    if obstacle is not None:
        grade, reason = "none", obstacle
    return {
        "event": "companion",
        "protocol": wire.PROTOCOL,
        "pid": os.getpid(),
        "rank": source.settings.rank,
        "world": source.settings.world,
        "python": platform.python_version(),
        "torch": str(sys.modules["torch"].__version__),
        "framework": "loop",
        "version": None,
        "grade": grade,
        "reason": reason,
        "saves": obstacle is None,
        "samples": position["samples"],
        "total_steps": count_steps(source, position, step),
        "epoch_units": units,
        "total_units": units * epochs if units else None,
        "unit": "samples",
    }


def _describe_place(event, step, position, micro):
    """Returns the start of an event: its kind, and its place on the run's clock."""
    return {"event": event, "step": step, "samples": position["samples"] + micro.step_samples, "epoch": micro.epoch}


def describe_step(step, position, micro, micros, seconds):
    """Returns the part of `step` that position and time decide. `seconds`: waiting for data, computing."""
    times = {"data_wait_ms": seconds[0] * 1e3, "compute_ms": seconds[1] * 1e3}
    return dict(_describe_place("step", step, position, micro), micro_batches=micros, **times)


def describe_skip(step, position, micro, rate, what):
    """Returns the event of a step that was dropped, less the place of the bad value."""
    return dict(_describe_place("skipped", step, position, micro), lr=rate or 0.0, what=what)


def count_steps(source, position, step):
    """Returns the length of the run in steps, if the rest of it is taken with the present batch."""
    if not source.steps_per_epoch:
        return None
    rest = (source.settings.epochs - position["epoch"]) * source.steps_per_epoch
    if source.epoch_units:
        rest -= math.floor(position["offset"] / (source.epoch_units / source.steps_per_epoch))
    return step + max(0, rest)


def knobs_in_force(source, clip, rate):
    """Returns the knobs that the loop knows, by their dotted names."""
    found = {
        "training.micro_batch": source.micro_batch,
        "training.accumulation": source.settings.accumulation,
        "knobs.loader_processes": source.workers,
        "optimizer.max_norm": clip,
        "optimizer.lr": rate,
    }
    return {name: value for name, value in found.items() if value is not None}


def fingerprint(step, ids, rate, scaler):
    """Returns the event by which a trial compares two trainings."""
    return {
        "event": "fingerprint",
        "step": step,
        "ids": order.hash_indices(ids),
        "random": random_state.fingerprint(),
        "lr": rate,
        "scale": scaler.get_scale() if scaler is not None else None,
    }

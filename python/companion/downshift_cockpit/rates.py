"""Learning rates: the knob `optimizer.lr` is the initial rate of the first group; the others keep their proportion."""

from __future__ import annotations

import sys

_OF_GROUP = ("lr", "initial_lr", "max_lr", "min_lr")
_OF_SCHEDULER = ("base_lrs", "_last_lr", "max_lrs")


def initial(optimizers):
    """Returns the initial rate of the first group; none if it has no rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            value = group.get("initial_lr", group.get("lr"))
            return None if value is None else float(value)
    return None


def current(optimizers):
    """Returns the present rate of the first group; none if it has no rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            value = group.get("lr")
            return None if value is None else float(value)
    return None


def scale(optimizers, schedulers, wanted):
    """Multiplies all rates so that the initial one becomes `wanted`. Equal rates stay untouched, to the last bit."""
    present = initial(optimizers)
    if present is None or not present or present == wanted:
        return
    multiply(optimizers, schedulers, wanted / present)
    first = optimizers[0].param_groups[0]
    exact = "initial_lr" if "initial_lr" in first else "lr"
    if isinstance(first[exact], float):
        first[exact] = wanted


def describe(optimizers):
    """Returns notes for a checkpoint: the rate that the script made its optimizer with, its initial and its present rate."""
    return {"asked": _asked(optimizers), "initial": initial(optimizers), "present": current(optimizers)}


def follow(companion, step, optimizers, schedulers, notes):
    """Brings rates that a checkpoint restored to the one that the script asks for now, and says so.

    A rate that the script itself has set since is left alone. `notes` are those of the checkpoint, at `step`.
    """
    before, now = notes.get("asked"), _asked(optimizers)
    found = {"initial": initial(optimizers), "present": current(optimizers)}
    is_restored = all(notes.get(name) == rate for name, rate in found.items())
    if not before or not now or before == now or not is_restored:
        return
    multiply(optimizers, schedulers, now / before)
    text = "learning rate from step {} on: {:g}, as the script asks; the checkpoint had {:g}"
    companion.note(text.format(step + 1, now, before), "info")


def _asked(optimizers):
    """Returns the rate in the optimizer's defaults, which no checkpoint restores."""
    value = getattr(optimizers[0], "defaults", {}).get("lr") if optimizers else None
    return None if value is None else float(value)


def multiply(optimizers, schedulers, factor):
    """Multiplies all rates of optimizers and schedulers, present and initial ones."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name in _OF_GROUP:
                if group.get(name) is not None:
                    group[name] = _multiply(group[name], factor)
    for scheduler in schedulers:
        _scale_scheduler(scheduler, factor)


def _scale_scheduler(scheduler, factor):
    for name in _OF_SCHEDULER:
        rates = getattr(scheduler, name, None)
        if isinstance(rates, list):
            setattr(scheduler, name, [_multiply(rate, factor) for rate in rates])
    for inner in getattr(scheduler, "_schedulers", ()):
        _scale_scheduler(inner, factor)


def _multiply(rate, factor):
    if hasattr(rate, "mul_"):
        return rate.mul_(factor)
    return rate * factor


def advance(schedulers):
    """Advances the schedulers, except the kind that needs a measured value: the script advances that one."""
    plateau = sys.modules["torch"].optim.lr_scheduler.ReduceLROnPlateau
    for scheduler in schedulers:
        if not isinstance(scheduler, plateau):
            scheduler.step()

"""Sets what a script has as constants: where a rung changes a knob that no argument takes, the settings object gets its value.

A script that builds `TrainingArguments`, Lightning's `Trainer` or an `Accelerator` from constants keeps its source. Values that
it sets later stay as it sets them: the knobs in force, which every training reports, show that.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys

from downshift_cockpit import wire

_ARGUMENTS = {
    "training.micro_batch": "per_device_train_batch_size",
    "training.accumulation": "gradient_accumulation_steps",
    "training.epochs": "num_train_epochs",
    "training.steps": "max_steps",
    "training.gradient_checkpointing": "gradient_checkpointing",
    "optimizer.lr": "learning_rate",
    "optimizer.max_norm": "max_grad_norm",
    "optimizer.weight_decay": "weight_decay",
}
_LIGHTNING = {
    "training.accumulation": "accumulate_grad_batches",
    "training.epochs": "max_epochs",
    "training.steps": "max_steps",
    "optimizer.max_norm": "gradient_clip_val",
}
_ACCELERATOR = {"training.accumulation": "gradient_accumulation_steps"}
_PRECISION = "training.precision"
_PLUGGED, _PLUGIN = "gradient_accumulation_steps", "gradient_accumulation_plugin"
# Their own trainers build these objects, too.
_FRAMEWORKS = ("transformers", "trl", "lightning", "pytorch_lightning")


def install(module):
    """Hooks into a module that defines a settings object."""
    if module.__name__ == "transformers.training_args":
        _hook_arguments(module.TrainingArguments)
    elif module.__name__ == "accelerate.accelerator":
        _hook_constructor(module.Accelerator, _ACCELERATOR, _accelerate_precision)
    else:
        _hook_constructor(module.Trainer, _LIGHTNING, _lightning_precision)


def _hook_arguments(kind):
    """Sets fields after a dataclass has its values, and before it derives others from them."""
    original = kind.__post_init__

    @functools.wraps(original)
    def __post_init__(self):
        for companion, name, new in _fields(_ARGUMENTS, _arguments_precision):
            if hasattr(self, name):
                _set(companion, name, getattr(self, name), new, functools.partial(setattr, self))
            else:
                companion.note("{} has no field {}, so it is not set".format(type(self).__name__, name))
        original(self)

    kind.__post_init__ = __post_init__


def _hook_constructor(kind, names, precision):
    original = kind.__init__
    parameters = inspect.signature(original).parameters

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        if sys._getframe(1).f_globals.get("__name__", "").split(".")[0] not in _FRAMEWORKS:
            for companion, name, new in _fields(names, precision):
                # One that is passed by position stays, and so does what a plug-in holds.
                is_free = name in parameters and list(parameters).index(name) > len(args)
                if is_free and not (name == _PLUGGED and kwargs.get(_PLUGIN) is not None):
                    before = kwargs.get(name, parameters[name].default)
                    _set(companion, name, before, new, kwargs.__setitem__)
        original(self, *args, **kwargs)

    kind.__init__ = __init__


def _fields(names, precision):
    """Returns the fields of a settings object that the rung changes: the companion, the field and its value. `knobs.NAME` is
    the field NAME."""
    companion, found = wire.companion(), []
    for knob, value in [] if companion is None else companion.constants.items():
        name = names.get(knob) or (knob[len("knobs.") :] if knob.startswith("knobs.") else None)
        pairs = precision(value) if knob == _PRECISION else [] if name is None else [(name, value)]
        found += [(companion, field, new) for field, new in pairs]
    return found


def _set(companion, name, before, new, change):
    if before == new:
        return
    change(name, new)
    if os.environ.get("RANK", "0") == "0":
        companion.note("set {} = {} in the process; the script has {}".format(name, new, before), "info")


def _arguments_precision(value):
    return [("bf16", value == "bf16"), ("fp16", value == "f16")]


def _lightning_precision(value):
    return [("precision", {"bf16": "bf16-mixed", "f16": "16-mixed", "f32": "32-true"}.get(value, value))]


def _accelerate_precision(value):
    return [("mixed_precision", {"f16": "fp16", "f32": "no"}.get(value, value))]

"""The state of a training as files: captured into kept host memory, written, read, and put back part by part.

Each rank writes files of its own. Rank 0 writes all of its state. The others leave out what DistributedDataParallel keeps
the same on all ranks: parameters, and optimizer states of such parameters.
"""

from __future__ import annotations

import json
import os
import sys

from downshift_cockpit import random_state, ranks, safetensors, values
from downshift_cockpit.excepthook import CheckpointError, ConfigError

VERSION = 1
FILES = ("model", "optimizer", "python")


class Parts:
    """The objects that make up a training."""

    def __init__(self, models, optimizers, schedulers, scaler, others, present=None):
        self.ranks = ranks.Ranks() if present is None else present
        # The parameters that rank 0 alone writes, by the name of their model.
        self.replicated = {
            name: {at for at, _ in unwrap(model).named_parameters(remove_duplicate=False)}
            if self.ranks.rank and ranks.find_replica(model) is not None
            else set()
            for name, model in models.items()
        }
        self.models = {name: unwrap(model) for name, model in models.items()}
        self.optimizers = optimizers
        self.schedulers = schedulers
        self.scaler = scaler
        self.others = others

    def parameter_names(self):
        """Returns the name of each parameter by its id."""
        names = {}
        for prefix, model in self.models.items():
            for name, parameter in model.named_parameters():
                names[id(parameter)] = join(prefix, name)
        return names

    def is_replicated(self, optimizer):
        """Reports whether rank 0 writes the state of an optimizer for this rank too."""
        replicated = {
            id(parameter)
            for prefix, model in self.models.items()
            for name, parameter in model.named_parameters()
            if name in self.replicated[prefix]
        }
        return bool(replicated) and all(id(parameter) in replicated for group in optimizer.param_groups for parameter in group["params"])

    def count_parameters(self):
        """Returns the number of trainable values, on all ranks together."""
        found = {}
        for model in self.models.values():
            found.update((id(p), p.numel()) for p in model.parameters() if p.requires_grad)
        return sum(found.values())


def unwrap(model):
    """Returns the model without the wrappers that change the names of its state: torch.compile, data parallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def join(prefix, name):
    """Returns the name of a tensor in the file: a single model has no prefix."""
    return "{}.{}".format(prefix, name) if prefix else name


class Capture:
    """Copies state into host memory that is kept from save to save."""

    def __init__(self, parts):
        self.parts = parts
        self._buffers = {}

    def check(self, header):
        """Raises `ValueNotKept` or `FormatError` if a part of the state cannot be kept."""
        for tensors in self._encode(header)[1].values():
            safetensors.Layout(tensors)

    def take(self, header):
        """Copies the state at a step border. `header` holds the values of the loop."""
        document, tensors = self._encode(header)
        for name in FILES:
            kept = self._buffers.get(name)
            if kept is None or not kept.layout.fits(tensors[name]):
                # The old memory goes first: both would not always fit.
                self._buffers.pop(name, None)
                kept = None
                self._buffers[name] = safetensors.Buffer(tensors[name])
            self._buffers[name].copy_from(tensors[name])
        if any(buffer.pinned for buffer in self._buffers.values()):
            sys.modules["torch"].cuda.synchronize()
        self._text = json.dumps(document, allow_nan=False, indent=1)

    def write(self, folder):
        """Writes the captured state into a new folder."""
        os.mkdir(folder, 0o700)
        for name, buffer in self._buffers.items():
            buffer.write(os.path.join(folder, file_name(self.parts.ranks.rank, name + ".safetensors")))
        with open(os.path.join(folder, file_name(self.parts.ranks.rank, "python.json")), "x", encoding="utf-8") as file:
            file.write(self._text)

    def _encode(self, header):
        encoders = {name: values.Encoder() for name in FILES}
        models = {}
        for prefix, model in self.parts.models.items():
            models[prefix] = {}
            for name, value in model.state_dict().items():
                if name in self.parts.replicated[prefix]:
                    continue
                is_tensor = isinstance(value, sys.modules["torch"].Tensor)
                encoder = encoders["model" if is_tensor else "python"]
                models[prefix][name] = encoder.encode(value, join(prefix, name) if is_tensor else "model." + join(prefix, name))
        document = {"version": VERSION, "loop": encoders["python"].encode(header, "loop"), "models": models}
        document["world"] = self.parts.ranks.world
        document["optimizers"] = [
            None if self.parts.is_replicated(optimizer) else encoders["optimizer"].encode(optimizer.state_dict(), "optimizer.{}".format(number))
            for number, optimizer in enumerate(self.parts.optimizers)
        ]
        encode = encoders["python"].encode
        document["schedulers"] = [
            encode(scheduler.state_dict(), "scheduler.{}".format(number))
            for number, scheduler in enumerate(self.parts.schedulers)
        ]
        document["scaler"] = None if self.parts.scaler is None else encode(self.parts.scaler.state_dict(), "scaler")
        document["others"] = {name: encode(other.state_dict(), "others." + name) for name, other in self.parts.others.items()}
        document["random"] = encode(random_state.capture(), "random")
        return document, {name: encoder.tensors for name, encoder in encoders.items()}


def file_name(rank, name):
    """Returns the name of a file of a rank. Those of rank 0 are named like the files of a training without ranks."""
    return "rank-{}.{}".format(rank, name) if rank else name


def read(folder, present):
    """Reads the state of this rank: its own part, and in it what rank 0 wrote for all."""
    kept = Kept(folder)
    if kept.world == present.world:
        return kept.completed_by(Kept(folder, present.rank)) if present.rank else kept
    if kept.is_sharded():
        # No older checkpoint fits either, and this one is whole.
        message = "the checkpoint holds weights spread over {} ranks, and this training has {}: start it with {} ranks again"
        raise ConfigError(message.format(kept.world, present.world, kept.world))
    return kept


class Kept:
    """A part of a checkpoint that was read: its values as they were encoded, with their tensors."""

    def __init__(self, folder, rank=0):
        try:
            with open(os.path.join(folder, file_name(rank, "python.json")), encoding="utf-8") as file:
                document = json.load(file)
            if document.get("version") != VERSION:
                message = "{} has version {}; this downshift reads version {}"
                raise CheckpointError(message.format(folder, document.get("version"), VERSION))
            tensors = {name: safetensors.read(os.path.join(folder, file_name(rank, name + ".safetensors"))) for name in FILES}
            self.world = int(document.get("world", 1))
            decode = values.decode
            merged = dict(tensors["python"])
            merged.update(tensors["model"])
            self.models = {
                prefix: {name: decode(value, merged) for name, value in state.items()}
                for prefix, state in document["models"].items()
            }
            self.optimizers = decode(document["optimizers"], tensors["optimizer"])
            self.schedulers = decode(document["schedulers"], tensors["python"])
            self.scaler = decode(document["scaler"], tensors["python"])
            self.others = decode(document["others"], tensors["python"])
            self.random = decode(document["random"], tensors["python"])
            self.loop = decode(document["loop"], tensors["python"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError("the checkpoint {} cannot be read: {}".format(folder, error)) from error

    def completed_by(self, own):
        """Returns the state of another rank: its own part, and of this one of rank 0 what the other left out."""
        own.models = {prefix: dict(state, **own.models.get(prefix, {})) for prefix, state in self.models.items()}
        own.optimizers = [mine or first for mine, first in zip(own.optimizers, self.optimizers)]
        return own

    def is_sharded(self):
        """Reports whether each rank holds a part of the weights."""
        return any(isinstance(value, values.Shard) for state in self.models.values() for value in state.values())


def restore(parts, kept):
    """Puts back everything but the random states and the position, which the loop restores when it begins."""
    restore_models(parts, kept)
    restore_optimizers(parts, kept)
    restore_schedulers(parts, kept)
    restore_scaler(parts, kept)
    restore_others(parts, kept)


def restore_models(parts, kept):
    """Puts back weights and buffers."""
    _compare("models", kept.models, parts.models)
    for prefix, model in parts.models.items():
        state, present = dict(kept.models[prefix]), model.state_dict()
        _compare("entries of the model's state", state, present)
        for name, value in present.items():
            state[name] = _spread(state[name], value, join(prefix, name))
            if hasattr(value, "shape") and tuple(value.shape) != tuple(state[name].shape):
                message = "`{}` has the shape {} in the checkpoint, but {} in the script"
                raise CheckpointError(message.format(join(prefix, name), list(state[name].shape), list(value.shape)))
        model.load_state_dict(state)


def restore_optimizers(parts, kept):
    """Puts back moments and parameter groups, each moment in the type that it had."""
    _compare_counts("optimizers", kept.optimizers, parts.optimizers)
    for number, (optimizer, state) in enumerate(zip(parts.optimizers, kept.optimizers)):
        state = _spread_moments(optimizer, state)
        try:
            optimizer.load_state_dict(state)
        except ValueError as error:
            raise CheckpointError("optimizer {} does not fit its state: {}".format(number, error)) from error
        _restore_types(optimizer, state)


def _spread(kept, present, name):
    """Returns a kept part as a part of the tensor that it was taken from; anything else as it is."""
    if not isinstance(kept, values.Shard) and not ranks.is_shard(present):
        return kept
    part = kept.part if isinstance(kept, values.Shard) else None
    if part is None or not ranks.is_shard(present) or kept.shape != tuple(present.shape) or part.shape != present.to_local().shape:
        raise CheckpointError("`{}` is spread over the ranks in another way than in the checkpoint".format(name))
    place = {"shape": present.shape, "stride": present.stride(), "run_check": False}
    return type(present).from_local(part.to(present.device), present.device_mesh, present.placements, **place)


def _spread_moments(optimizer, state):
    """Returns the state of an optimizer with the parts of its moments spread as their parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    keys = [key for group in state["param_groups"] for key in group["params"]]
    moments = dict(state["state"])
    for parameter, key in zip(parameters, keys):
        if key in moments and ranks.is_shard(parameter):
            spread = ((name, value, isinstance(value, values.Shard)) for name, value in moments[key].items())
            moments[key] = {name: _spread(value, parameter, name) if of else value for name, value, of in spread}
    return dict(state, state=moments)


def _restore_types(optimizer, state):
    """torch casts moments to the type of their parameter: puts back those that had another."""
    torch = sys.modules["torch"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    keys = [key for group in state["param_groups"] for key in group["params"]]
    for parameter, key in zip(parameters, keys):
        for name, value in state["state"].get(key, {}).items():
            present = optimizer.state[parameter].get(name)
            if isinstance(value, torch.Tensor) and isinstance(present, torch.Tensor) and present.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(present.device)


def restore_schedulers(parts, kept):
    """Puts back schedulers."""
    _compare_counts("schedulers", kept.schedulers, parts.schedulers)
    for scheduler, state in zip(parts.schedulers, kept.schedulers):
        scheduler.load_state_dict(state)


def restore_scaler(parts, kept):
    """Puts back the scale of the loss. A rung may switch scaling on or off: then it starts anew."""
    if parts.scaler is not None and kept.scaler:
        parts.scaler.load_state_dict(kept.scaler)


def restore_others(parts, kept):
    """Puts back whatever else the script gave to `attach`."""
    _compare("further states", kept.others, parts.others)
    for name, other in parts.others.items():
        other.load_state_dict(kept.others[name])


def restore_random(kept):
    """Puts back the random states; returns a clause about what could not be put back, or none."""
    return random_state.restore(kept.random)


def _compare(what, kept, present):
    missing = [str(name) for name in present if name not in kept]
    unknown = [str(name) for name in kept if name not in present]
    if missing or unknown:
        parts = []
        if missing:
            parts.append("it lacks " + _list(missing))
        if unknown:
            parts.append("the script has no " + _list(unknown))
        raise CheckpointError("the {} of the checkpoint are not those of the script: {}".format(what, "; ".join(parts)))


def _compare_counts(what, kept, present):
    if len(kept) != len(present):
        message = "the checkpoint holds {} {}, the script gave {}"
        raise CheckpointError(message.format(len(kept), what, len(present)))


def _list(names):
    shown = ", ".join("`{}`".format(name) for name in names[:8])
    return shown if len(names) <= 8 else "{} and {} more".format(shown, len(names) - 8)

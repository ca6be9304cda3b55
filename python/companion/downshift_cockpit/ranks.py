"""The ranks of a training: torchrun starts a process for each, and names it in the environment.

Every rank takes its share of each step, and holds its part of the state. Rank 0 speaks for the training.
"""

from __future__ import annotations

import os
import sys

from downshift_cockpit import rank_file, report, wire
from downshift_cockpit.excepthook import ConfigError


class Ranks:
    """This process among the ranks."""

    def __init__(self, rank=0, world=1):
        self.rank = rank
        self.world = world
        self._wrappers = []
        self.file = rank_file.NoFile()

    def begin(self, companion, step):
        """Records from now on where this rank stands."""
        self.file = rank_file.open_for(companion, self.rank, self.world)
        self.file.resume(step)

    @property
    def are_several(self):
        return self.world > 1

    def hold_back_reductions(self, models):
        """Lets `reduce_at` decide when these models reduce their gradients."""
        self._wrappers = list(models) if self.are_several else []

    def reduce_at(self, is_boundary):
        """Reduces gradients over the ranks in the last micro-batch of a step only. Both wrappers offer this themselves."""
        for model in self._wrappers:
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(is_boundary)
            elif find_replica(model) is not None:
                find_replica(model).require_backward_grad_sync = is_boundary

    def backward(self, loss, is_boundary):
        """Runs the backward pass, and records when it waits for the other ranks: at the border of a step only."""
        if is_boundary and self.are_several:
            rank_file.watch_reduction(loss, self.file)
        loss.backward()

    def spread_non_finite(self, loss):
        """Gives a NaN or infinite loss a NaN gradient. The reduction carries it to every rank, so all drop the step."""
        if not self.are_several:
            return loss
        torch = sys.modules["torch"]
        return loss * torch.where(torch.isfinite(loss.detach()), 1.0, float("nan")).to(loss.dtype)


def find():
    """Returns the ranks as torchrun and torch.distributed name them."""
    rank, world = report.find_rank()
    distributed = sys.modules.get("torch.distributed")
    if world > 1 and not (distributed is not None and distributed.is_available() and distributed.is_initialized()):
        message = "this process is rank {} of {}: call torch.distributed.init_process_group before downshift.attach"
        raise ConfigError(message.format(os.environ.get("RANK", "?"), world))
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or world)
    companion = wire.companion()
    if companion is not None and here * companion.nodes < world:
        message = (
            "{} of {} ranks run on this machine, and downshift keeps those of {}: start all of them there "
            "(--nproc-per-node={})"
        )
        kept = "this machine" if companion.nodes == 1 else "the {} nodes of its job".format(companion.nodes)
        raise ConfigError(message.format(here, world, kept, -(-world // companion.nodes)))
    return Ranks(rank, world)


def check_models(models, ranks):
    """Raises ConfigError if a model would be trained apart on each rank."""
    for name, model in models.items() if ranks.are_several else ():
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if find_replica(model) is None and not all(is_shard(parameter) for parameter in trained):
            named = "model `{}`".format(name) if name else "the model"
            message = (
                "{} would be trained apart on each of {} ranks: wrap it in DistributedDataParallel, or call fully_shard on it, "
                "before downshift.attach"
            )
            raise ConfigError(message.format(named, ranks.world))


def find_replica(model):
    """Returns the DistributedDataParallel wrapper of a model, or none."""
    while model is not None and type(model).__name__ != "DistributedDataParallel":
        model = getattr(model, "_orig_mod", None)
    return model


def is_shard(tensor):
    """Reports whether a tensor is spread over the ranks (a DTensor)."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def are_sharded(models):
    """Reports whether weights of these models are spread over the ranks."""
    return any(is_shard(parameter) for model in models.values() for parameter in model.parameters())


def local(tensor):
    """Returns the part of a tensor that this rank holds."""
    return tensor.to_local() if is_shard(tensor) else tensor

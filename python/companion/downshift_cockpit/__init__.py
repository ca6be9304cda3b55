"""downshift's companion: keeps a PyTorch loop exactly resumable. `import downshift` costs nothing until it is used."""

from __future__ import annotations

__all__ = ["attach"]


def attach(model, optimizer, scheduler=None, scaler=None, clip=None, schedule="step", seed=None, others=None):
    """Restores a training from its newest checkpoint, and returns the `Run` that goes on with it.

    `model`: a module, a list, or a dict of modules. `optimizer`, `scheduler`: one, or a list. `clip`: the largest norm
    of the gradient. `schedule`: whether a scheduler advances with each "step" or "epoch". `seed`: of the order of the
    data, unless the run file has one; without it, the seed that the script gave to `torch.manual_seed`. `others`: further
    objects with `state_dict` and `load_state_dict`, by name.
    Under torchrun, every rank calls this, after `init_process_group` and with models in DistributedDataParallel or after
    `fully_shard`.
    """
    import torch  # noqa: F401 : the modules below find it in sys.modules

    from downshift_cockpit import excepthook, loop, ranks, snapshot

    excepthook.install()
    present = ranks.find()
    if schedule not in ("step", "epoch"):
        raise excepthook.ConfigError("attach: schedule is `step` or `epoch`, not `{}`".format(schedule))
    if isinstance(model, (list, tuple)):
        model = {str(number): part for number, part in enumerate(model)}
    models = model if isinstance(model, dict) else {"": model}
    ranks.check_models(models, present)
    present.hold_back_reductions(models.values())
    parts = snapshot.Parts(models, _list(optimizer), _list(scheduler), scaler, dict(others or {}), present)
    return loop.Run(parts, clip, schedule, seed)


def _list(value):
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]

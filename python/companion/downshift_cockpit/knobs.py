"""The values that are really in force, under the names that run files use."""

from __future__ import annotations

import math


def find_seed(companion, own):
    """Returns the seed for data loading: the run file's, or else the script's own, which every attempt repeats."""
    return companion.knob("training.seed", companion.knob("knobs.seed", own))


def of_trainer(trainer, optimizer=None):
    """Returns the knobs of a Hugging Face Trainer. Its batch may differ from its arguments: it can find one that fits.

    So may its rate, if the script made the optimizer, or if its state comes from a checkpoint.
    """
    args = trainer.args
    groups = getattr(optimizer, "param_groups", None) or []
    initial = [as_number(group.get("initial_lr", group.get("lr"))) for group in groups]
    is_followed = not initial or any(rate is not None and math.isclose(rate, args.learning_rate) for rate in initial)
    devices = max(1, getattr(args, "n_gpu", 1) or 1)
    found = {
        "training.micro_batch": getattr(trainer, "_train_batch_size", args.per_device_train_batch_size * devices) // devices,
        "training.accumulation": args.gradient_accumulation_steps,
        "training.epochs": args.num_train_epochs if (args.max_steps or -1) < 0 else None,
        "training.steps": args.max_steps if (args.max_steps or -1) > 0 else None,
        "knobs.loader_processes": args.dataloader_num_workers,
        "optimizer.max_norm": args.max_grad_norm,
        "training.precision": "bf16" if args.bf16 else "f16" if args.fp16 else "f32",
        "training.gradient_checkpointing": getattr(args, "gradient_checkpointing", None),
        "optimizer.lr": args.learning_rate if is_followed else initial[0],
        "optimizer.weight_decay": args.weight_decay,
        "seed": args.seed,
    }
    return _present(found)


def of_lightning(trainer, loader):
    """Returns the knobs of a Lightning Trainer and of its training loader."""
    rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
    found = {
        "training.micro_batch": getattr(loader, "batch_size", None),
        "training.accumulation": trainer.accumulate_grad_batches,
        "training.epochs": trainer.max_epochs,
        "training.steps": trainer.max_steps if (trainer.max_steps or -1) > 0 else None,
        "knobs.loader_processes": getattr(loader, "num_workers", None),
        "optimizer.max_norm": trainer.gradient_clip_val,
        "training.precision": _lightning_precision(str(getattr(trainer, "precision", ""))),
        "optimizer.lr": initial_rate(trainer.optimizers[0]) if rates else None,
    }
    return _present(found)


def of_accelerator(accelerator):
    """Returns the knobs of an accelerate loop, but for its rate."""
    loaders = getattr(accelerator, "_dataloaders", None) or [None]
    found = {
        "training.micro_batch": batch_size(loaders[0]),
        "training.accumulation": getattr(accelerator, "gradient_accumulation_steps", None),
        "training.precision": {"no": "f32", "fp16": "f16"}.get(accelerator.mixed_precision, accelerator.mixed_precision),
    }
    return _present(found)


def batch_size(loader):
    """Returns the batch size of a loader that accelerate prepared: it keeps the script's own batch sampler within."""
    while loader is not None:
        size = getattr(loader, "batch_size", None)
        if size is not None:
            return size
        loader = getattr(loader, "batch_sampler", None)
    return None


def micro_batch(declared, measured, wanted, is_final):
    """Returns the micro-batch in force of a loader that declares one size, while its largest batch had another one. A loader of
    single items may serve whole batches that its data set makes. One below the rung's size may be the rest of an epoch, until
    enough batches were measured; those that cannot be counted leave what the loader declares."""
    if declared != 1 or measured == 1:
        return declared
    if is_final:
        return measured or declared
    return None if measured is None or measured < (wanted or 0) else measured


def initial_rate(optimizer):
    """Returns the rate that the optimizer was made with: a scheduler changes `lr` and keeps it as `initial_lr`."""
    group = optimizer.param_groups[0]
    return as_number(group.get("initial_lr", group.get("lr")))


def rate(optimizer):
    """Returns the rate of the next step."""
    return as_number(optimizer.param_groups[0].get("lr"))


def as_number(value):
    """Returns a rate as a float, also where it is a tensor."""
    return None if value is None else float(value)


def _lightning_precision(name):
    for part, precision in (("bf16", "bf16"), ("16", "f16"), ("32", "f32"), ("64", "f64")):
        if part in name:
            return precision
    return None


def _present(found):
    return {name: value for name, value in found.items() if value is not None}

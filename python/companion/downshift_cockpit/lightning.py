"""Keeps a training of Lightning (`lightning` or `pytorch_lightning`) with no line of the script changed."""

from __future__ import annotations

import functools
import inspect

from downshift_cockpit import lightning_training, report, trial_output, wire
from downshift_cockpit.shield import choose_checkpoint


def install(module):
    """Hooks into the module of Lightning's Trainer."""
    original = module.Trainer.fit
    takes_weights_only = "weights_only" in inspect.signature(original).parameters

    @functools.wraps(original)
    def fit(self, model, train_dataloaders=None, val_dataloaders=None, datamodule=None, ckpt_path=None, *args, **kwargs):
        training = _begin(self, module)
        if training is None:
            return original(self, model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, *args, **kwargs)
        try:
            chosen = choose_checkpoint(training, ckpt_path)
            if chosen is not None and chosen != ckpt_path and takes_weights_only and not args:
                # A file that this run wrote, with whatever the script keeps in it.
                kwargs.setdefault("weights_only", False)
            result = original(self, model, train_dataloaders, val_dataloaders, datamodule, chosen, *args, **kwargs)
            training.end()
            return result
        finally:
            training.leave()

    module.Trainer.fit = fit


def _begin(trainer, module):
    companion = wire.companion()
    if companion is None or getattr(trainer, "fast_dev_run", False) or not report.claim("lightning"):
        return None
    if companion.trial:
        # Not caught: a trial that would write into the user's folder fails instead.
        trial_output.redirect_lightning(companion, trainer)
    try:
        return lightning_training.Training(trainer, module, companion)
    except Exception as error:
        report.release("lightning")
        companion.quiet(error)
        return None

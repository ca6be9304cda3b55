"""Keeps a training of the Hugging Face Trainer, and of TRL and PEFT above it, with no line of the script changed.

The callback sees step borders, wrappers on the instance see raw losses and the gradient's norm before clipping, and
`train` is given the run's checkpoint. Everything is put back when `train` returns.
"""

from __future__ import annotations

import functools

from downshift_cockpit import hf_training, report, trial_output, wire
from downshift_cockpit.shield import choose_checkpoint


def install(module):
    """Hooks into transformers.trainer."""
    original = module.Trainer.train

    @functools.wraps(original)
    def train(self, resume_from_checkpoint=None, trial=None, *args, **kwargs):
        training = _begin(self, module, trial)
        if training is None:
            return original(self, resume_from_checkpoint, trial, *args, **kwargs)
        try:
            resume = choose_checkpoint(training, resume_from_checkpoint)
            result = original(self, resume, trial, *args, **kwargs)
            training.end()
            return result
        finally:
            training.leave()

    module.Trainer.train = train


def _begin(trainer, module, trial):
    """Returns the training that begins; none outside downshift, within another one, or in a search."""
    companion = wire.companion()
    if companion is None or trial is not None or not report.claim("transformers"):
        return None
    if companion.trial:
        # Not caught: a trial that would write into the user's folder fails instead.
        trial_output.redirect_trainer(companion, trainer)
    try:
        return hf_training.Training(trainer, module, companion)
    except Exception as error:
        report.release("transformers")
        companion.quiet(error)
        return None

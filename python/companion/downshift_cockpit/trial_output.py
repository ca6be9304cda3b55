"""Keeps a trial out of the user's folders: a framework writes into the trial's own run directory instead."""

from __future__ import annotations

import hashlib
import os

FOLDER = "output"


def redirect(companion, path):
    """Returns where a trial writes instead of `path`: the same folder for the same path. One in the run stays."""
    root, target = os.path.realpath(companion.run_dir), os.path.realpath(os.path.expanduser(str(path)))
    if target == root or target.startswith(os.path.join(root, "")):
        return path
    digest = hashlib.sha256(os.fsencode(target)).hexdigest()[:8]
    return os.path.join(root, FOLDER, "{}-{}".format(os.path.basename(target), digest))


def redirect_trainer(companion, trainer):
    """Redirects a Hugging Face Trainer: it would save among the user's checkpoints, and delete the oldest of them."""
    args = trainer.args
    for name in ("output_dir", "logging_dir"):
        if getattr(args, name, None):
            setattr(args, name, redirect(companion, getattr(args, name)))
    args.push_to_hub = False


def redirect_lightning(companion, trainer):
    """Redirects a Trainer of Lightning, its checkpoints and its loggers."""
    trainer._default_root_dir = redirect(companion, trainer.default_root_dir)
    for callback in trainer.checkpoint_callbacks:
        _redirect_attribute(companion, callback, "dirpath")
    for logger in trainer.loggers:
        _redirect_attribute(companion, logger, "_root_dir")
        _redirect_attribute(companion, logger, "_save_dir")


def _redirect_attribute(companion, holder, name):
    if getattr(holder, name, None):
        setattr(holder, name, redirect(companion, getattr(holder, name)))

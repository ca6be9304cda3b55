"""A hook that fails never ends a training: it says so once, and takes itself out."""

from __future__ import annotations

import functools

from downshift_cockpit.excepthook import CheckpointError


def shielded(method):
    """Lets a method of an object with `companion` and `off` fail without harm. A stop (SystemExit) passes."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        if self.off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.companion.quiet(error)
            self.off = True
            return None

    return run


def choose_checkpoint(training, given):
    """Returns the checkpoint that a training resumes from: the run's, or the script's where the run has none.

    A checkpoint of the run that cannot be used ends the script: it would start over.
    """
    try:
        return training.checkpoints.choose(given)
    except CheckpointError:
        raise
    except Exception as error:
        training.companion.quiet(error)
        return given

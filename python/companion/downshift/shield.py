"""A hook that fails never ends a training: it says so once, and takes itself out."""

from __future__ import annotations

import functools


def shielded(method):
    """Lets a method of an object with `companion` and `off` fail without harm. A stop (SystemExit) passes."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        if self.off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.off = True
            self.companion.quiet(error)
            return None

    return run

"""Stacks on a signal (SIGSTKFLT): faulthandler writes those of all threads into the attempt's folder, also while Python hangs."""

from __future__ import annotations

import faulthandler
import os
import signal

from downshift_cockpit import wire

_registered = None


def register(companion):
    """Arranges for stacks on a signal. Returns (signal, file), or (None, None) where that fails."""
    global _registered
    if _registered is None:
        try:
            _registered = _register(companion)
        except (OSError, ValueError, RuntimeError, AttributeError, TypeError):
            return None, None
    return _registered[0], _registered[1]


def _register(companion):
    # Nothing on Linux uses this signal, and unlike a real-time signal it has a name.
    number = signal.Signals.SIGSTKFLT if hasattr(signal, "SIGSTKFLT") else 16
    if signal.getsignal(number) != signal.SIG_DFL:
        return None, None, None
    path = os.path.join(companion.attempt_dir, "stacks-{}.txt".format(companion.process))
    file = open(path, "w", encoding="utf-8", opener=wire.own_file)
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    return int(number), path, file

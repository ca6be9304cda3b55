"""Names the cause when an exception ends the script: a `failed` event by the exception's class, never by its text.

An exception of no known class is left to the log, from which the keeper reads the cause. Of several ranks, each reports
every exception: in the log nothing tells the first one from those that follow.
"""

from __future__ import annotations

import errno
import sys
import threading

from downshift_cockpit import blame, wire

CUDA_OUT_OF_MEMORY = 2
_step = None
_installed = False


class CheckpointError(RuntimeError):
    """A checkpoint that does not fit this script, or cannot be read."""


class ConfigError(ValueError):
    """A use of downshift, or a value of the rung, that cannot work."""


def install():
    """Puts the hook in front of the present one."""
    global _installed
    if _installed:
        return
    _installed = True
    previous = sys.excepthook

    def hook(kind, error, trace):
        try:
            report(error)
        except Exception:
            pass
        previous(kind, error, trace)

    sys.excepthook = hook


def set_step(step):
    """Keeps the step that a failure would be reported with."""
    global _step
    _step = step


def report(error):
    """Sends the `failed` event of an exception, if its class is known."""
    companion = wire.companion()
    if companion is None:
        return
    failure, cause = find_cause(error)
    if failure is None:
        if not companion.speaks or _count_ranks() == 1 or not isinstance(error, Exception):
            return
        failure = "unknown"
    event = {"event": "failed", "class": failure, "message": wire.one_line(cause), "step": _step}
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        event["thread"] = thread.name
    if getattr(error, "downshift_injected", False):
        event["injected"] = True
    companion.send(event)
    companion.flush()


def _count_ranks():
    from downshift_cockpit import report

    return report.find_rank()[1]


def find_cause(error):
    """Returns the failure class of an exception or of one that led to it, and that exception. An exception that the companion
    took led to nothing. The class is none if it says nothing."""
    first, seen = error, set()
    while error is not None and id(error) not in seen and not blame.was_taken(error):
        seen.add(id(error))
        failure = _classify_one(error)
        if failure is not None:
            return failure, error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None, first


def _classify_one(error):
    if isinstance(error, CheckpointError):
        return "checkpoint"
    if isinstance(error, ConfigError):
        return "config"
    if getattr(error, "downshift_injected", False) and not _is_torch(error, "OutOfMemoryError"):
        return "panic"
    if isinstance(error, blame.LastStepError):
        return "disk_full"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if _is_torch(error, "OutOfMemoryError"):
        return "device_out_of_memory"
    if _is_torch(error, "AcceleratorError"):
        out_of_memory = getattr(error, "error_code", None) == CUDA_OUT_OF_MEMORY
        return "device_out_of_memory" if out_of_memory else "device_fault"
    if _is_torch(error, "distributed.DistBackendError") or _is_torch(error, "distributed.DistNetworkError"):
        return "collective"
    return None


def _is_torch(error, name):
    kind = sys.modules.get("torch")
    if name == "OutOfMemoryError" and kind is not None and not hasattr(kind, name):
        kind = getattr(kind, "cuda", None)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    return isinstance(kind, type) and isinstance(error, kind)

"""Whose an exception is that passes through the companion: its own, which it takes, or the script's, which it passes on."""

from __future__ import annotations

import contextlib
import errno
import re
import signal
import time

OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
LAST_SAVES = 3


class LastStepError(RuntimeError):
    """The last step of a training that the disk refuses: the training would count as finished without it."""

    def __init__(self, step, why):
        super().__init__("the last step, {}, could not be saved: {}".format(step, why))


class NotSaved(str):
    """Why a save is not durable, in one line."""

    of_disk = False

    def __new__(cls, text, of_disk=False):
        self = super().__new__(cls, text)
        self.of_disk = bool(of_disk)
        return self


def take(error):
    """Takes an exception as one of the companion's own. Raises one that belongs to the script."""
    if isinstance(error, LastStepError) or getattr(error, "downshift_ends", False) or _is_of_signal(error):
        raise error
    with contextlib.suppress(Exception):
        error.downshift_took = True


def let_end(error):
    """Lets an exception of the companion end the script: the other ranks wait for this one."""
    error.downshift_ends = True


def was_taken(error):
    """Reports whether the companion took an exception: then it explains no other one that follows."""
    return getattr(error, "downshift_took", False)


def is_of_disk(error):
    """Reports whether the disk caused a failure to write."""
    if isinstance(error, NotSaved):
        return error.of_disk
    # torch.save drops the error number; safetensors keeps it in the text.
    of_torch = "PytorchStreamWriter" in str(error) or "inline_container.cc" in str(error)
    if of_torch or getattr(error, "errno", None) in OF_DISK:
        return True
    number = re.search(r"\(os error (\d+)\)|Os \{ code: (\d+)", str(error))
    return number is not None and int(number[1] or number[2]) in OF_DISK


def make_last_durable(step, save):
    """Makes the last step of a training durable. `save` returns why it is not, or none."""
    failure = None
    for attempt in range(LAST_SAVES):
        time.sleep(attempt)
        failure = save()
        if failure is None or not is_of_disk(failure):
            return failure
    raise LastStepError(step, failure)


def _is_of_signal(error):
    """Reports whether a signal handler raised it. It strikes anywhere: that of torch reports a loader process that died."""
    codes, trace = _handler_codes(), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _handler_codes():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    calls = [getattr(type(handler), "__call__", None) for handler in handlers if callable(handler)]
    codes = {getattr(code, "__code__", None) for code in handlers + calls}
    return codes - {None}

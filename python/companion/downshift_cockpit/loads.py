"""Observes what the script loads before its first optimizer step, and how many updates its optimizer had counted by then.

A script that finds its own checkpoint may find none, or another one. The files that torch and safetensors read, and the
optimizer's own count, show it; the harness knows which files are checkpoints of the run. Frameworks end in the same calls:
accelerate and Lightning in `torch.load`, transformers and diffusers in `safe_open`.
"""

from __future__ import annotations

import collections
import functools
import os
import sys

MOST_FILES = 64
MOST_STATES = 64
# Names under which scripts keep the step in a checkpoint.
STEP_NAMES = (
    "global_step", "step", "steps", "iteration", "iter", "iter_num", "iters", "current_step", "num_steps", "trained_steps",
    "completed_steps", "update", "num_updates",
)  # fmt: skip

# Path → what is known of the file. Files of which a state was taken over stay the longest.
_files = collections.OrderedDict()
_restored = False
_is_over = False


class _File:
    __slots__ = ("step", "parts", "is_used")

    def __init__(self, step, parts):
        self.step, self.parts, self.is_used = step, parts, False


def install(module):
    """Hooks into a module that loads files or states."""
    name = module.__name__
    if name == "torch.serialization":
        original = module.load
        module.load = _trace(original, "f")
        torch = sys.modules.get("torch")
        if getattr(torch, "load", None) is original:
            torch.load = module.load
    elif name == "safetensors":
        module.safe_open = _trace(module.safe_open, "filename")
    elif name == "torch.distributed.checkpoint.state_dict_loader":
        module.load = _trace(module.load, "checkpoint_id", is_positional=False)
    elif name == "torch.nn.modules.module":
        _trace_state(module.Module, False)
    elif name == "torch.optim.optimizer":
        _trace_state(module.Optimizer, True)


def _trace(original, name, is_positional=True):
    """Wraps a function that reads the file which its first argument names."""

    # `safe_open` is a class.
    @functools.wraps(original, updated=())
    def load(*args, **kwargs):
        found = original(*args, **kwargs)
        if not _is_over:
            _note_file(args[0] if args and is_positional else kwargs.get(name), found)
        return found

    return load


def _trace_state(kind, is_optimizer):
    original = kind.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self, state_dict, *args, **kwargs):
        if not _is_over:
            _note_state(state_dict, is_optimizer)
        return original(self, state_dict, *args, **kwargs)

    kind.load_state_dict = load_state_dict


def _note_file(file, found):
    try:
        if not isinstance(file, (str, os.PathLike)):
            # Lightning passes an open file.
            file = getattr(file, "name", None) or getattr(file, "path", None)
        if not isinstance(file, (str, os.PathLike)):
            return
        path = os.path.abspath(os.fspath(file))
        if not isinstance(path, str):
            return
        step, parts = None, set()
        if isinstance(found, dict):
            step, parts = _step_in(found), _parts_of(found)
        _files.pop(path, None)
        _files[path] = _File(step, parts)
        while len(_files) > MOST_FILES:
            # A script may read each of its samples from a file.
            rest = (path for path, file in _files.items() if not file.is_used and file.step is None)
            del _files[next(rest, next(iter(_files)))]
    except Exception:
        # Whatever a script loads, it trains on.
        pass


def _note_state(state, is_optimizer):
    global _restored
    try:
        _restored = _restored or is_optimizer
        own = _parts_of(state)
        for file in _files.values():
            file.is_used = file.is_used or not own.isdisjoint(file.parts)
    except Exception:
        pass


def _parts_of(state):
    """Returns the identities of a state: its own, those of the states in it, and of their first values. A script may take
    the state of a model out of a checkpoint, or rename its values."""
    if not isinstance(state, dict):
        return set()
    parts = {id(state)}
    for value in [state, *list(state.values())[:MOST_STATES]]:
        if isinstance(value, dict):
            parts.add(id(value))
            parts.update(id(first) for first in list(value.values())[:1] if not isinstance(first, (int, float, str)))
    return parts


def _step_in(found):
    """Returns the step that a checkpoint holds, or none."""
    for name in STEP_NAMES:
        step = _count(found.get(name))
        if step:
            return step
    for value in list(found.values())[:MOST_STATES]:
        if isinstance(value, dict) and isinstance(value.get("state"), dict) and "param_groups" in value:
            return _steps_of(value["state"]) or None
    return None


def _count(value):
    if isinstance(value, bool) or value is None or isinstance(value, (str, bytes, dict, list, tuple)):
        return None
    try:
        count = int(value)
        return count if count >= 0 and count == value else None
    except Exception:
        return None


def _steps_of(state):
    """Returns the number of updates in the state of an optimizer, or none if it keeps no count."""
    found = [_count(entry.get("step")) for entry in list(state.values())[:MOST_STATES] if isinstance(entry, dict)]
    found = [count for count in found if count is not None]
    return max(found) if found else None


class Observation:
    """Tells once what was loaded, at the first step that an optimizer takes."""

    def __init__(self, companion, report):
        # Nothing is claimed of a fresh start.
        self._report = report if companion.resume else None
        self._before = None
        if self._report is None:
            _finish()

    def before(self, optimizer):
        """Looks at an optimizer that is about to take a step."""
        if self._report is not None:
            self._before = _look_at(optimizer)

    def after(self, optimizer):
        """Reports what was loaded. An optimizer that had no state is new only if it keeps a count."""
        if self._report is None or self._before is None:
            return
        (entries, steps), report, self._report = self._before, self._report, None
        if not entries:
            steps = 0 if _look_at(optimizer)[1] is not None else None
        report.loaded(describe_files(), steps, _restored)
        _finish()


def _look_at(optimizer):
    """Returns the number of entries in the state of an optimizer, and the updates that it has counted."""
    try:
        state = getattr(optimizer, "state", None) or {}
        return len(state), _steps_of(state)
    except Exception:
        return 0, None


def describe_files():
    """Returns the files that were loaded, the newest last: those of which a state was taken over, if there are any."""
    files = list(_files.items())
    used = [(path, file) for path, file in files if file.is_used]
    return [{"path": path, "step": file.step} for path, file in used or files]


def _finish():
    global _is_over
    _is_over = True
    _files.clear()

"""Hooks into libraries at the moment the script imports them, and imports none of them itself."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys

from downshift_cockpit import standby

# Library module → the modules of the companion that hook into it, in this order.
HOOKS = {
    "torch": ("excepthook",),
    "torch.serialization": ("loads",),
    "torch.nn.modules.module": ("loads",),
    "torch.distributed.checkpoint.state_dict_loader": ("loads",),
    "safetensors": ("loads",),
    "torch.utils.data.dataloader": ("fetch", "rhythm"),
    "torch.optim.optimizer": ("rate_in_force", "loads", "optimizer_hook"),
    "torch.amp.grad_scaler": ("scaler_hook",),
    "torch.cuda.amp.grad_scaler": ("scaler_hook",),
    "accelerate.optimizer": ("accelerate",),
    "accelerate.data_loader": ("accelerate",),
    "accelerate.accelerator": ("accelerate", "constants"),
    "transformers.training_args": ("constants",),
    "transformers.trainer": ("hf",),
    "lightning.pytorch.trainer.trainer": ("lightning", "constants"),
    "pytorch_lightning.trainer.trainer": ("lightning", "constants"),
}

MARK = "_downshift_hooked"
# The short name of this package, which another project has on PyPI.
ALIAS = "downshift"


def install():
    """Puts the finder in front, and hooks into what is imported already."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    standby.note_environment()
    sys.meta_path.insert(0, Finder())
    for name in HOOKS:
        if name in sys.modules:
            run_hooks(sys.modules[name])


def run_hooks(module):
    """Calls `install(module)` of each hook, once. A hook that fails leaves its library as it is."""
    if module.__dict__.get(MARK):
        return
    module.__dict__[MARK] = True
    for name in HOOKS.get(module.__name__, ()):
        try:
            _install(importlib.import_module("downshift_cockpit." + name), module)
        except Exception as error:
            _report(name, error)


def _install(hook, module):
    if hook.__name__ == "downshift_cockpit.excepthook":
        hook.install()
    else:
        hook.install(module)


def _report(name, error):
    from downshift_cockpit import wire

    _note("downshift cannot hook into {}: {}".format(name, wire.describe(error)))


def _find_stranger():
    """Finds another package that a script means by `import downshift`, and says so: the script keeps it."""
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    rest = [path for path in sys.path if os.path.abspath(path or os.getcwd()) != beside]
    spec = importlib.machinery.PathFinder.find_spec(ALIAS, rest)
    origin = spec and spec.origin
    if origin:
        text = "`import downshift` finds another package, {}: write `import downshift_cockpit as downshift`"
        _note(text.format(origin))
        return spec
    return None


def _note(text):
    try:
        from downshift_cockpit import wire

        companion = wire.companion()
        if companion is not None:
            companion.note(text)
    except Exception:
        pass


class Finder:
    """A meta path finder that finds nothing itself: it lets the others find, and wraps `exec_module` of what is hooked."""

    def __init__(self):
        self._busy = set()

    def find_spec(self, name, path=None, target=None):
        if name in self._busy:
            return None
        if name == ALIAS:
            return _find_stranger()
        if name not in HOOKS:
            return None
        if name == "torch":
            standby.compare_environment()
        self._busy.add(name)
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            self._busy.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _wrap_loader(spec.loader)
        return spec

    def _find_elsewhere(self, name, path, target):
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


def _wrap_loader(loader):
    original = loader.exec_module

    def exec_module(module):
        original(module)
        run_hooks(module)

    try:
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        # Such a loader cannot be wrapped: its module stays without hooks.
        pass

"""Standby: the next process imports ahead and waits at a gate, a fifo, until the harness opens it.

Only installed packages are imported, those that the last attempt had when its training began; never a module of the
script, since Python puts the script's folder on the path after this. No GPU is touched.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import sys
import sysconfig

PASSED = "DOWNSHIFT_GATE_PASSED"
POLL_MS = 1000
SKIPPED = ("__main__", "sitecustomize", "usercustomize", "downshift")


def wait():
    """Imports ahead and waits, if this process is a standby. Processes that it starts later never wait."""
    settings = _read_settings()
    gate = settings.get("gate")
    if not gate or os.environ.get(PASSED) == gate or not os.path.exists(gate):
        return
    parent = os.getppid()
    os.environ[PASSED] = gate
    import_recorded(settings.get("modules"))
    _wait_at(gate, parent)


def import_recorded(path):
    """Imports the modules that `record` wrote, as far as they are still found where they were. Returns their number."""
    try:
        with open(path, encoding="utf-8") as file:
            recorded = json.load(file)
    except (OSError, TypeError, ValueError):
        return 0
    moved = _moved_packages(recorded)
    count = 0
    for name, _ in recorded:
        if name in sys.modules or name.split(".")[0] in moved:
            continue
        try:
            importlib.import_module(name)
            count += 1
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
    return count


def record(path):
    """Writes the names and origins of the installed modules that are imported now."""
    roots = _installed_roots()
    found = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if origin and name.split(".")[0] not in SKIPPED and origin.startswith(roots):
            found.append((name, origin))
    partial = "{}.{}".format(path, os.getpid())
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(partial, path)


def _read_settings():
    with open(os.environ["DOWNSHIFT_COMPANION"], encoding="utf-8") as file:
        settings = json.load(file)
    return settings if isinstance(settings, dict) else {}


def _installed_roots():
    paths = sysconfig.get_paths()
    return tuple({os.path.join(paths[key], "") for key in ("purelib", "platlib", "stdlib", "platstdlib")})


def _moved_packages(recorded):
    """Returns the top-level packages that are now found elsewhere, or not at all."""
    moved = set()
    for name, origin in recorded:
        if "." in name or name in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is None or spec.origin != origin:
            moved.add(name)
    return moved


def _wait_at(gate, parent):
    """Waits until a writer opens the fifo and closes it again. Ends this process if its parent ends before."""
    descriptor = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while not poll.poll(POLL_MS):
            if os.getppid() != parent:
                os._exit(75)
        # The harness rewrites companion.json before it closes the fifo: whatever it writes is read to the end first.
        while poll.poll(POLL_MS) and os.read(descriptor, 4096):
            pass
    finally:
        os.close(descriptor)

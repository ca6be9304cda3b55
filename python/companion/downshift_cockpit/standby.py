"""Standby: the next process imports ahead and waits at a gate, a fifo, until the harness opens it.

Only installed packages are imported, those that the last attempt had when its training began; never a module of the
script, since Python puts the script's folder on the path after this. A script for which the order of imports matters has
no standby: one that sets variables before it imports torch, or has a module with the name of an installed one.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import select
import sys
import sysconfig

PASSED = "DOWNSHIFT_GATE_PASSED"
POLL_MS = 1000
# pycuda opens the GPU when it is imported.
SKIPPED = ("__main__", "sitecustomize", "usercustomize", "downshift", "downshift_cockpit", "pycuda")

_environment = None
_environment_changed = False


def wait():
    """Imports ahead and waits, if this process is a standby. Processes that it starts later never wait.

    A standby that cannot wait ends itself: the script must not run beside the training that it is to follow.
    """
    settings = _read_settings()
    gate = settings.get("gate")
    if not gate or os.environ.get(PASSED) == gate:
        return
    parent = os.getppid()
    os.environ[PASSED] = gate
    try:
        import_recorded(settings.get("modules"))
        _wait_at(gate, parent)
    except BaseException:
        if not _is_open(gate):
            os._exit(75)


def note_environment():
    """Keeps the variables as they are at the start of the process."""
    global _environment
    _environment = _variables()


def compare_environment():
    """Notes whether the script changed a variable before it imported torch, which reads some of them then."""
    global _environment_changed
    if _environment is not None and _variables() != _environment:
        _environment_changed = True


def _variables():
    return {name: value for name, value in os.environ.items() if not name.startswith("DOWNSHIFT_")}


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
    """Writes the names and origins of the installed modules that are imported now; none if the script depends on the
    order of its imports. Never raises: without the list, the next start takes longer, and nothing else."""
    partial = "{}.{}".format(path, os.getpid())
    try:
        found = [] if _environment_changed else _installed_modules()
        # Not before: this module is imported at the start of each process.
        from downshift_cockpit import wire

        with open(partial, "w", encoding="utf-8", opener=wire.own_file) as file:
            json.dump(found, file)
        os.replace(partial, path)
    except Exception:
        try:
            os.unlink(partial)
        except OSError:
            pass


def _installed_modules():
    """Returns names and origins of the installed modules; none if the script has a module with an installed one's name."""
    roots = _installed_roots()
    found, own = [], set()
    for name, module in list(sys.modules.items()):
        origin = _origin(module)
        if not origin or name.split(".")[0] in SKIPPED:
            continue
        if origin.startswith(roots):
            found.append((name, origin))
        elif os.path.isabs(origin):
            own.add(name.split(".")[0])
    finder = importlib.machinery.PathFinder
    return [] if any(finder.find_spec(name, list(roots)) for name in own) else found


def _origin(module):
    try:
        return module.__spec__.origin
    except Exception:
        # Modules that load lazily may fail at any attribute.
        return None


def _read_settings():
    with open(os.environ["DOWNSHIFT_COMPANION"], encoding="utf-8") as file:
        settings = json.load(file)
    return settings if isinstance(settings, dict) else {}


def _is_open(gate):
    """Reports whether the harness has let this process through meanwhile: then the file names no gate, or another one."""
    try:
        return _read_settings().get("gate") != gate
    except Exception:
        return False


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

"""Plays the harness: writes companion.json, listens on the socket, publishes what is saved, sends orders."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

COMPANION = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "companion")
SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
LIMIT = 240.0


class Attempt:
    """One process of a script, its events, and how it ended."""

    def __init__(self, events, code, output):
        self.events, self.code, self.output = events, code, output

    def of(self, kind):
        return [event for event in self.events if event["event"] == kind]

    def one(self, kind):
        found = self.of(kind)
        assert len(found) == 1, (kind, found, self.output[-3000:])
        return found[0]

    def hello(self):
        assert self.of("companion"), self.output[-3000:]
        return self.of("companion")[-1]

    def losses(self):
        return {event["step"]: event.get("loss") for event in self.of("step")}

    def rates(self):
        return {event["step"]: event.get("lr") for event in self.of("step")}

    def weights(self):
        found = [line for line in self.output.splitlines() if line.startswith("WEIGHTS")]
        assert found, self.output[-3000:]
        return found[-1]

    def resume(self):
        """Returns the resume point that the harness writes for the next attempt."""
        newest = self.of("wrote")[-1]
        return {"kind": "script", "path": newest["path"], "step": newest["step"], "samples": newest["samples"]}


class HarnessDouble:
    """A run directory with the harness's end of the socket.

    `on_event` is called for each event, `before_answer` before a save is answered, in the reader's thread. The other
    settings are those of companion.json, for all attempts.
    """

    def __init__(self, on_event=None, publishes=True, before_answer=None, folder=None, **settings):
        self.folder = folder or tempfile.mkdtemp(prefix="downshift-test-")
        self.events = []
        self.arrived = threading.Condition()
        self.connections = []
        self.ended = 0
        self.attempts = 0
        self.on_event = on_event
        self.before_answer = before_answer
        self.publishes = publishes
        self.settings = settings
        self.staging = os.path.join(self.folder, "checkpoints")
        os.makedirs(self.staging, exist_ok=True)
        self._plan = Plan()
        # A socket's path has at most 107 bytes.
        self._place = tempfile.mkdtemp(prefix="dsh-")
        self._path = os.path.join(self._place, "s")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        """Dies, as far as the companion can see."""
        self._listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def write_settings(self, **more):
        """Writes companion.json for an attempt, and returns its path."""
        self.attempts += 1
        attempt = os.path.join(self.folder, "attempt-{}".format(self.attempts))
        os.makedirs(attempt, exist_ok=True)
        settings = {
            "protocol": 1, "socket": self._path, "run_dir": self.folder, "attempt_dir": attempt, "attempt": self.attempts,
            "rung": "full", "seed": 1234567, "knobs": {}, "skip_non_finite": True,
            "checkpoint": {"every_steps": None, "every_seconds": None}, "inject": [], "resume": self.newest(),
            "staging": self.staging, "modules": os.path.join(self.folder, "imported-modules.json"), "gate": None,
            "trial": False,
        }  # fmt: skip
        settings.update(self.settings)
        settings.update(more)
        path = os.path.join(attempt, "companion.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(settings, file)
        return path

    def newest(self):
        """Returns the newest published container as `resume` of companion.json."""
        steps = sorted(name for name in os.listdir(self.staging) if name.startswith("step-"))
        if not steps:
            return None
        step = int(steps[-1][5:])
        return {"kind": "container", "path": os.path.join(self.staging, steps[-1]), "step": step, "samples": None}

    def start(self, arguments, environment=None, settings=None, **options):
        """Starts Python with these arguments, as the harness would. `options` go to Popen."""
        path = self.write_settings(**(settings or {}))
        variables = dict(os.environ, DOWNSHIFT_COMPANION=path, PYTHONPATH=COMPANION)
        variables.update(environment or {})
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([sys.executable, *arguments], env=variables, **options)

    def fork(self, main, arguments, **settings):
        """Starts `main(arguments)` in a child that has this process's imports: importing torch takes seconds."""
        path = self.write_settings(**settings)
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.environ["DOWNSHIFT_COMPANION"] = path
            for connection in self.connections:
                connection.close()
            main(arguments)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            atexit._run_exitfuncs()
            os._exit(code)

    def run(self, script, *arguments, orders=None, kill_at=None, term_at=None, environment=None, flags=(), publish=True,
            before_answer=(), **settings):  # fmt: skip
        """Runs one of the scripts to its end, from the beginning unless `resume` is given, and returns its attempt.

        `orders` maps a step to the order sent when its event arrives; at `kill_at` and `term_at` a signal is sent.
        `before_answer` are orders sent before the answer to a save.
        """
        settings = {"seed": 7, "resume": None, **settings}
        variables = dict(PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
        variables.update(environment or {})
        self.publishes, first = publish, len(self.events)
        self._plan = Plan(orders, {kill_at: signal.SIGKILL, term_at: signal.SIGTERM}, before_answer)
        process = self.start(
            [*flags, os.path.join(SCRIPTS, script), *map(str, arguments)], variables, settings, cwd=self.folder,
            stdin=None, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._plan.begin(process)
        try:
            output, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        with self.arrived:
            self.arrived.wait_for(lambda: self.ended >= len(self.connections), 10)
        return Attempt(self.events[first:], process.returncode, output)

    def send(self, order, connection=None):
        """Sends an order to a process, by default to the one that connected last."""
        (connection or self.connections[-1]).sendall(json.dumps(order).encode() + b"\n")

    def of(self, kind):
        """Returns the events of a kind."""
        return [event for event in list(self.events) if event["event"] == kind]

    def wait_for(self, found, limit=LIMIT):
        """Waits until an event satisfies `found`, and returns it."""
        with self.arrived:
            self.arrived.wait_for(lambda: any(map(found, self.events)), limit)
        return next(filter(found, self.events))

    def wait_for_end(self, limit=LIMIT):
        """Waits until a process has closed its connection."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.ended, limit)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection):
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    self._receive(connection, json.loads(line))
        except OSError:
            pass
        with self.arrived:
            self.ended += 1
            self.arrived.notify_all()

    def _receive(self, connection, event):
        if self.before_answer is not None:
            self.before_answer(self, event)
        if event["event"] in ("staged", "wrote"):
            try:
                self._answer(connection, event)
            except OSError:
                pass
        with self.arrived:
            self.events.append(event)
            self.arrived.notify_all()
        self._plan.act(self, connection, event)
        if self.on_event is not None:
            self.on_event(self, event)

    def _answer(self, connection, event):
        step = event["step"]
        for order in self._plan.before_answer:
            self.send(order, connection)
        if not self.publishes:
            self.send({"order": "publish_failed", "step": step, "message": "the disk is full"}, connection)
            return
        if event["event"] == "staged":
            published = os.path.join(self.staging, "step-{:09}".format(step))
            os.rename(os.path.join(self.staging, event["folder"]), published)
        self.send({"order": "published", "step": step}, connection)


class Plan:
    """The orders and signals of one attempt, each at a step."""

    def __init__(self, orders=None, signals=None, before_answer=()):
        self.before_answer = before_answer
        self._orders, self._signals = dict(orders or {}), signals or {}
        self._process = None
        self._started = threading.Event()

    def begin(self, process):
        """Sets the process that the signals go to."""
        self._process = process
        self._started.set()

    def act(self, harness, connection, event):
        """Does what is due at the step of an event."""
        kind, step = event["event"], event.get("step")
        if kind in ("step", "skipped") and step in self._orders:
            harness.send(self._orders.pop(step), connection)
        if kind == "step" and step in self._signals:
            self._started.wait(LIMIT)
            self._process.send_signal(self._signals[step])

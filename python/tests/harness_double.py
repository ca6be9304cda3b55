"""Plays the harness: writes companion.json, listens on the socket, publishes what is staged, sends orders."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

COMPANION = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "companion")
LIMIT = 120.0


class HarnessDouble:
    """A run directory with the harness's end of the socket. `on_event` is called for each event, in the reader's thread."""

    def __init__(self, on_event=None, publishes=True, **settings):
        self.folder = tempfile.mkdtemp(prefix="downshift-test-")
        self.events = []
        self.arrived = threading.Condition()
        self.connections = []
        self.ended = 0
        self.on_event = on_event
        self.publishes = publishes
        self.settings = settings
        self.staging = os.path.join(self.folder, "checkpoints")
        os.mkdir(self.staging)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = os.path.join(self.folder, "companion.sock")
        self._listener.bind(self._path)
        self._listener.listen()
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

    def write_settings(self, **more):
        """Writes companion.json for an attempt, and returns its path."""
        attempt = os.path.join(self.folder, "attempt")
        os.makedirs(attempt, exist_ok=True)
        settings = {
            "protocol": 1, "socket": self._path, "run_dir": self.folder, "attempt_dir": attempt, "attempt": 1,
            "rung": "full", "seed": 1234567, "knobs": {}, "skip_non_finite": True,
            "checkpoint": {"every_steps": None, "every_seconds": None}, "inject": [], "resume": self.newest(),
            "staging": self.staging, "modules": os.path.join(self.folder, "modules.json"), "gate": None, "trial": False,
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

    def start(self, arguments, environment=None, **settings):
        """Starts a script of this folder, as the harness would."""
        variables = dict(os.environ, DOWNSHIFT_COMPANION=self.write_settings(**settings), PYTHONPATH=COMPANION)
        variables.update(environment or {})
        return subprocess.Popen([sys.executable] + arguments, env=variables, stdin=subprocess.DEVNULL)

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

    def run(self, arguments, environment=None, **settings):
        """Runs a script to its end, and returns its exit code."""
        return self.start(arguments, environment, **settings).wait(LIMIT)

    def send(self, order):
        """Sends an order to the process that connected last."""
        self.connections[-1].sendall(json.dumps(order).encode() + b"\n")

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
        answer = None
        if event["event"] == "staged" and self.publishes:
            step = event["step"]
            published = os.path.join(self.staging, "step-{:09}".format(step))
            os.rename(os.path.join(self.staging, event["folder"]), published)
            answer = {"order": "published", "step": step}
        elif event["event"] == "staged":
            answer = {"order": "publish_failed", "step": event["step"], "message": "the disk is full"}
        if answer is not None:
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                pass
        with self.arrived:
            self.events.append(event)
            self.arrived.notify_all()
        if self.on_event is not None:
            self.on_event(self, event)

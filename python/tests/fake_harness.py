"""Plays the harness for one attempt of a script: companion.json, the socket, orders, the exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

COMPANION = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "companion")
SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
LIMIT_SECONDS = 240


class Attempt:
    """One process, its events, and how it ended."""

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


class FakeHarness:
    """The attempts of one run."""

    def __init__(self, folder):
        self.folder = folder
        self.attempts = 0

    def run(self, script, *arguments, orders=None, kill_at=None, term_at=None, environment=None, flags=(), publish=True, **settings):
        """Runs a script.

        `orders` maps a step to the order sent when its event arrives; at `kill_at` and `term_at` a signal is sent.
        """
        self.attempts += 1
        attempt_dir = os.path.join(self.folder, "attempt-{}".format(self.attempts))
        os.makedirs(attempt_dir, exist_ok=True)
        # A socket's path has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="dsh-") as short:
            path = os.path.join(short, "s")
            self._write_settings(attempt_dir, path, settings)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(path)
                listener.listen(16)
                process = self._start(script, arguments, attempt_dir, environment, flags)
                signals = {kill_at: signal.SIGKILL, term_at: signal.SIGTERM}
                server = Server(listener, dict(orders or {}), process, signals, publish)
                try:
                    output, _ = process.communicate(timeout=LIMIT_SECONDS)
                finally:
                    process.kill()
                server.finish()
        return Attempt(server.events, process.returncode, output)

    def _write_settings(self, attempt_dir, path, settings):
        content = {
            "protocol": 1, "socket": path, "run_dir": self.folder, "attempt_dir": attempt_dir, "attempt": self.attempts,
            "rung": "full", "seed": 7, "knobs": {}, "skip_non_finite": True,
            "checkpoint": {"every_steps": None, "every_seconds": None}, "inject": [], "resume": None,
            "staging": os.path.join(self.folder, "checkpoints"), "modules": os.path.join(self.folder, "imported-modules.json"),
            "gate": None, "trial": False,
        }  # fmt: skip
        content.update(settings)
        with open(os.path.join(attempt_dir, "companion.json"), "w", encoding="utf-8") as file:
            json.dump(content, file)

    def _start(self, script, arguments, attempt_dir, environment, flags):
        variables = dict(os.environ, PYTHONPATH=COMPANION, PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1")
        variables.update(
            DOWNSHIFT_COMPANION=os.path.join(attempt_dir, "companion.json"), HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""
        )
        variables.update(environment or {})
        command = [sys.executable, *flags, os.path.join(SCRIPTS, script), *map(str, arguments)]
        return subprocess.Popen(
            command, env=variables, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


class Server:
    """The socket: one thread accepts, one reads each process."""

    def __init__(self, listener, orders, process, signals, publish):
        self.events = []
        self._orders, self._process, self._signals, self._publish = orders, process, signals, publish
        self._listener = listener
        self._readers = []
        threading.Thread(target=self._accept, daemon=True).start()

    def finish(self):
        self._listener.close()
        for reader in self._readers:
            reader.join(10)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._readers.append(reader)
            reader.start()

    def _read(self, connection):
        try:
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    self._receive(connection, json.loads(line))
        except OSError:
            pass

    def _receive(self, connection, event):
        self.events.append(event)
        kind, step = event["event"], event.get("step")
        if kind in ("wrote", "staged"):
            answer = {"order": "published", "step": step}
            if not self._publish:
                answer = {"order": "publish_failed", "step": step, "message": "the disk is full"}
            self._send(connection, answer)
        if kind in ("step", "skipped") and step in self._orders:
            self._send(connection, self._orders.pop(step))
        if kind == "step" and step in self._signals:
            self._process.send_signal(self._signals[step])

    def _send(self, connection, order):
        connection.sendall(json.dumps(order).encode() + b"\n")

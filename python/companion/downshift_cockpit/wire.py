"""The line to the harness: companion.json, the socket, and the orders that arrive.

Nothing here raises into a training: what fails makes the companion quiet. A forked child never speaks.
"""

from __future__ import annotations

import atexit
import collections
import json
import math
import os
import socket
import sys
import threading

from downshift_cockpit import blame

PROTOCOL = 1
VARIABLE = "DOWNSHIFT_COMPANION"
LIMIT_BYTES = 16 << 20
WAITING_LIMIT = 100_000
FLUSH_SECONDS = 2.0

_unread = object()
_companion = _unread


def own_file(path, flags):
    """Opens a file of the run, as an `opener`: whatever the script's umask is, other users cannot write it."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def companion():
    """Returns the companion of this process; none outside downshift, in a forked child, or after it went quiet."""
    global _companion
    if _companion is _unread:
        _companion = _read()
    if _companion is None or _companion.asleep:
        return None
    return _companion


def _read():
    path = os.environ.get(VARIABLE)
    if not path or _is_child_process():
        return None
    try:
        with open(path, "rb") as file:
            text = file.read(LIMIT_BYTES + 1)
        settings = json.loads(text) if len(text) <= LIMIT_BYTES else None
        if not isinstance(settings, dict) or settings.get("protocol") != PROTOCOL:
            return None
        return Companion(settings)
    except Exception:
        return None


def _is_child_process():
    """Reports whether multiprocessing started this process: a loader process, say. It has nothing to report."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


class Companion:
    """The settings of this attempt and the line to its harness. It connects when it first speaks."""

    def __init__(self, settings):
        self.settings = settings
        self.seed = int(settings.get("seed") or 0)
        self.knobs = settings.get("knobs") or {}
        self.constants = settings.get("constants") or {}
        self.states = settings.get("states")
        self.length = settings.get("length")
        self.counts_anew = bool(settings.get("counts_anew"))
        self.resume = settings.get("resume")
        self.inject = list(settings.get("inject") or [])
        self.checkpoint = settings.get("checkpoint") or {}
        self.best = settings.get("best")
        self.skip_non_finite = bool(settings.get("skip_non_finite", True))
        self.trial = bool(settings.get("trial"))
        self.rung = settings.get("rung")
        self.attempt = settings.get("attempt")
        self.run_dir = settings.get("run_dir")
        self.attempt_dir = settings.get("attempt_dir")
        self.nodes = int(settings.get("nodes") or 1)
        node = int(settings.get("node") or 0)
        # Processes of two nodes may have the same id, and they share folders.
        self.process = "{}-{}".format(node, os.getpid()) if node else str(os.getpid())
        self.staging = settings.get("staging")
        self.modules = settings.get("modules")
        self.gate = settings.get("gate")
        self.asleep = False
        self._pid = os.getpid()
        self._line = None

    def knob(self, name, default=None):
        """Returns the value of a knob by its dotted name (`training.micro_batch`), or `default` if the rung lacks it."""
        value = self.knobs
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return default if value is None else value

    def send(self, event):
        """Sends an event; never blocks, never raises."""
        if self.asleep:
            return
        line = self._line or self._connect()
        if line is not None:
            line.send(event)

    @property
    def speaks(self):
        """Whether this process has said anything yet."""
        return self._line is not None

    def note(self, text, level="warn"):
        """Sends a note for the user: one sentence."""
        self.send({"event": "note", "level": level, "text": str(text)})

    def quiet(self, error):
        """Reports that the companion itself failed, and says nothing from then on. The training goes on. An exception that
        belongs to the script passes."""
        blame.take(error)
        if self.asleep:
            return
        self.note("the companion failed and is off from here on: " + describe(error))
        self.flush()
        self.asleep = True
        if self._line is not None:
            self._line.hang_up()

    def take_order(self):
        """Returns the next order of the harness, `checkpoint` or `stop`, or none. For step borders: never blocks."""
        line = self._line
        while line is not None and line.orders:
            order = line.orders.popleft()
            if order["order"] != "stop" or not line.stop_withdrawn:
                return order
        return None

    def stop_withdrawn(self):
        """Reports whether the harness has withdrawn the stop that it ordered last: it took too long."""
        return self._line is not None and self._line.stop_withdrawn

    def withdrew_before(self, step):
        """Reports whether the stop was withdrawn before the harness answered about the container of `step`. It sends both to
        all ranks in the same order, so all of them find the same."""
        return self._line is not None and step in self._line.withdrawn_steps

    def wait_published(self, step):
        """Waits until the harness has published the container of `step`; returns none, or why it could not."""
        line = self._line
        return "the harness cannot be reached" if line is None else line.wait_published(step)

    def poll_published(self, step):
        """Reports without waiting what became of the container of `step`: (known, why it failed)."""
        line = self._line
        return (True, "the harness cannot be reached") if line is None else line.poll_published(step)

    def flush(self, seconds=FLUSH_SECONDS):
        """Waits until everything is sent, for `seconds` at most."""
        if self._line is not None:
            self._line.flush(seconds)

    def _connect(self):
        if os.getpid() != self._pid:
            self.asleep = True
            return None
        try:
            self._line = Line(self.settings["socket"])
        except Exception:
            self.asleep = True
            return None
        atexit.register(self._leave)
        return self._line

    def _leave(self):
        """Says that the process ends by itself, unless by an exception: then its line does not break off."""
        if getattr(sys, "last_value", None) is None:
            self.send({"event": "left"})
        self.flush()

    def _sleep_after_fork(self):
        self.asleep = True
        line, self._line = self._line, None
        if line is not None:
            line.drop()


class Line:
    """A connected socket. Events are written at once; a thread takes over while the harness is slow to read."""

    def __init__(self, path):
        self.orders = collections.deque()
        self.stop_withdrawn = False
        self.withdrawn_steps = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._open = True
        self._changed = threading.Condition()
        self._outcomes = {}
        self._waiting = []
        self._draining = False
        threading.Thread(target=self._listen, name="downshift-orders", daemon=True).start()

    def send(self, event):
        if not self._open:
            return
        data = encode(event)
        with self._changed:
            if self._draining:
                # A harness that reads nothing must not fill the memory: then steps are left out.
                if len(self._waiting) < WAITING_LIMIT or event.get("event") != "step":
                    self._waiting.append(data)
                return
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._close()
                return
            if sent < len(data):
                self._waiting.append(data[sent:])
                self._draining = True
                threading.Thread(target=self._drain, name="downshift-send", daemon=True).start()

    def wait_published(self, step):
        with self._changed:
            self._changed.wait_for(lambda: step in self._outcomes or not self._open)
            return self._outcomes.pop(step, "the harness has ended")

    def poll_published(self, step):
        with self._changed:
            if step in self._outcomes:
                return True, self._outcomes.pop(step)
            return (not self._open), ("the harness has ended" if not self._open else None)

    def flush(self, seconds):
        with self._changed:
            self._changed.wait_for(lambda: not self._draining, seconds)

    def hang_up(self):
        """Ends the connection: the harness reads steps from the output from then on."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._close()

    def drop(self):
        """Closes the child's copy of the socket after a fork; the parent's connection stays."""
        self._open = False
        try:
            self._socket.close()
        except OSError:
            pass

    def _drain(self):
        while True:
            with self._changed:
                data, self._waiting = b"".join(self._waiting), []
                if not data or not self._open:
                    self._draining = False
                    self._changed.notify_all()
                    return
            try:
                self._socket.sendall(data)
            except OSError:
                self._close()

    def _listen(self):
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._receive(line)
        except OSError:
            pass
        self._close()

    def _receive(self, line):
        try:
            order = json.loads(line)
            kind = order["order"]
        except (ValueError, TypeError, KeyError):
            return
        if kind in ("published", "publish_failed"):
            with self._changed:
                failure = None
                if kind == "publish_failed":
                    failure = blame.NotSaved(order.get("message", "unknown"), order.get("of_disk"))
                self._outcomes[order.get("step")] = failure
                if self.stop_withdrawn:
                    self.withdrawn_steps.add(order.get("step"))
                self._changed.notify_all()
        elif kind == "collective":
            # On this thread: the one that trains hangs.
            from downshift_cockpit import flight

            self.send(flight.describe_newest())
        elif kind == "withdraw_stop":
            self.stop_withdrawn = True
        else:
            if kind == "stop":
                self.stop_withdrawn = False
            self.orders.append(order)

    def _close(self):
        with self._changed:
            self._open = False
            self._changed.notify_all()


def encode(event):
    """Returns an event as a line. JSON has no NaN: such a value becomes null."""
    try:
        text = _encode(event)
    except ValueError:
        text = _encode(_finite(event))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _plain(value):
    try:
        number = float(value)
        return number if math.isfinite(number) else None
    except Exception:
        return str(value)


def _make_encoder():
    """Returns json's encoder, built once: `JSONEncoder.encode` builds it anew for each event, which doubles its time."""
    try:
        from json.encoder import c_make_encoder, encode_basestring_ascii

        parts = c_make_encoder(None, _plain, encode_basestring_ascii, None, ": ", ", ", False, False, False)
        if "".join(parts({"event": "step", "loss": 0.5}, 0)) == '{"event": "step", "loss": 0.5}':
            return lambda event: "".join(parts(event, 0))
    except Exception:
        pass
    return json.JSONEncoder(allow_nan=False, default=_plain).encode


_encode = _make_encoder()


def _finite(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def one_line(error):
    """Returns an error's class and message in one line."""
    message = " ".join(str(error).split())[:500]
    return type(error).__name__ + (": " + message if message else "")


def describe(error):
    """Returns an error in one line, with the place in the companion where it was raised."""
    if not isinstance(error, BaseException):
        return str(error)
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return one_line(error)
    return "{} ({}:{})".format(one_line(error), os.path.basename(frame.tb_frame.f_code.co_filename), frame.tb_lineno)


def _after_fork():
    if isinstance(_companion, Companion):
        _companion._sleep_after_fork()


os.register_at_fork(after_in_child=_after_fork)

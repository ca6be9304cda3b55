"""Whether the data goes on behind a state as it would have without a break: the batch that follows is compared.

accelerate fetches one batch ahead, so a state within a pass carries the digest of the next batch. At the end of a pass nothing is
fetched yet: if the loop trains on, the digest of the first batch of the next pass is recorded in the run directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets

FILE = "next-batches.json"
MOST_ENTRIES = 16


class NextBatch:
    """The batches that follow the states of a loop."""

    def __init__(self, run_dir):
        self._path = os.path.join(run_dir, FILE) if run_dir else None
        # The state that was written at the end of a pass, until the next one begins.
        self._open = None
        # The digest that the first batch of a resumed script must have. None without a resume.
        self._wanted = self._is_awaited = self._found = None

    def describe(self, begun):
        """Returns the part of a state's notes that says how the data goes on."""
        name, digest = secrets.token_hex(8), begun.digest_of_next()
        self._open = name if digest is None else None
        return {"name": name, "next": digest}

    def expect(self, notes):
        """Sets the notes of the state from which the loop resumes."""
        self._wanted = notes.get("next") or self._read().get(notes.get("name"))
        self._is_awaited = True

    def look_at(self, begun, is_training):
        """Looks at a batch before the script gets it."""
        awaits = is_training and self._open is not None
        if self._is_awaited or awaits:
            begun.look_at_batch()
        if awaits:
            self._record(self._open, begun.digest)
            self._open = None

    def trains_on(self, begun):
        """Compares the first batch that the script trains on."""
        if self._is_awaited:
            self._is_awaited, self._found = False, begun.digest

    @property
    def doubt(self):
        """Why it is not certain that the data goes on as it would have without the break, or none."""
        if self._wanted is None:
            return "no batch shows whether the data goes on as before: the state was saved between two passes over it"
        if self._found is None:
            return "no batch shows whether the data goes on as before: its batches cannot be compared"
        return None if self._wanted == self._found else "the data set gives another batch than it would have given without the break"

    def _read(self):
        with contextlib.suppress(OSError, ValueError, TypeError):
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
            return found if isinstance(found, dict) else {}
        return {}

    def _record(self, name, digest):
        if self._path is None or digest is None:
            return
        known = dict(list(self._read().items())[1 - MOST_ENTRIES :])
        # Without it, less is said of a resume.
        with contextlib.suppress(OSError):
            with open(self._path + ".new", "w", encoding="utf-8") as file:
                json.dump({**known, name: digest}, file)
            os.replace(self._path + ".new", self._path)

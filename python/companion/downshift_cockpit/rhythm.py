"""Whether a loop takes a step for every batch, or every few of them: then no update was left out unseen.

A script may drop a batch before it reaches the optimizer. That shows as a step that comes late in a pass over a DataLoader;
why it was dropped does not show. A loop without a DataLoader shows nothing.
"""

from __future__ import annotations

import functools
import weakref

# Equal distances in a row that make a rhythm.
SETTLED = 4

_watched = None


def install(module):
    """Wraps the iterators of torch's DataLoader."""
    kind = getattr(module, "_BaseDataLoaderIter", None)
    original = getattr(kind, "__next__", None)
    if original is None:
        return

    @functools.wraps(original)
    def fetch(self):
        batch = original(self)
        if _watched is not None:
            _watched.fetched(self)
        return batch

    kind.__next__ = fetch


def watch():
    """Returns the rhythm of the loop of this process, which follows all loaders from now on."""
    global _watched
    _watched = Rhythm()
    return _watched


class Rhythm:
    """The batches between two steps, within one pass over a loader."""

    def __init__(self):
        self._current = self._newest = _nothing
        self._batches = self._period = self._equal = self._last = 0
        self.is_broken = False

    @property
    def is_steady(self):
        """Whether every step so far came when it was due."""
        return self._period > 0 and not self.is_broken

    def fetched(self, iterator):
        """Takes in a batch."""
        if self._newest() is not iterator:
            self._newest = weakref.ref(iterator)
        if self._current() is iterator:
            self._batches += 1

    def stepped(self):
        """Takes in a step, whether it updated the weights or not."""
        distance, self._batches = self._batches, 0
        newest = self._newest()
        if newest is None or self._current() is not newest:
            # The first step of a pass: what it accumulated before the companion looked is not known.
            self._current = self._newest
            return
        # Several steps for one batch say nothing.
        if distance == 0:
            return
        self._equal = self._equal + 1 if distance == self._last else 1
        self._last = distance
        if self._equal >= SETTLED:
            # An accumulation that changes is another rhythm.
            self._period = distance
        elif self._period and distance >= 2 * self._period and distance % self._period == 0:
            self.is_broken = True


def _nothing():
    return None

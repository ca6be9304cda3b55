"""Makes the random numbers of data loading a function of (seed, epoch, index), whoever loads.

A plain DataLoader draws the order of an epoch from the global random state, seeds its loader processes from it, and a
loader in the main process draws augmentations from it too. None of that survives a resume within an epoch. While this
is on, the order of an epoch, each sample and each batch have streams of their own, and the global state is left alone.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import weakref

WRAPPERS = 8

_state = None


class Seeding:
    """The seed and the epoch of the training that runs, and the samples that its loader was asked for."""

    def __init__(self, seed, record=False):
        self.seed = seed
        self.epoch = 0
        self.untagged = False
        self.requested = collections.deque()
        self.record = record
        self._expects = False

    def begin_epoch(self, epoch):
        """Names the epoch. The first loader that is iterated from here on is the training's."""
        self.epoch = epoch
        self.requested.clear()
        self._expects = True

    def take_ids(self, batches):
        """Returns the ids of the next batches in the order in which the loader hands them out; for a trial."""
        return [self.requested.popleft() for _ in range(min(batches, len(self.requested)))]

    def key_of(self, loader):
        """Returns the key of a pass that begins. Further passes over a loader in the same epoch differ."""
        epoch, count = loader.__dict__.get("_downshift_passes", (None, 0))
        # A framework may begin a pass twice before it reads.
        count = count + _was_read(loader) if epoch == self.epoch else 0
        loader.__dict__["_downshift_passes"] = (self.epoch, count)
        return (self.seed, self.epoch, count)

    def batches_ahead(self):
        """Returns the batches that a framework fetched ahead of the training."""
        return 0

    def batch_size_changed(self, before, now, exact):
        """Called when a loader continues with another batch size, from the same sample if `exact`."""

    def keeps_batches(self, loader):
        """Reports whether the newest two batches of the pass over `loader` that begins are kept."""
        return False

    def recorder(self, loader):
        """Returns where the pass over `loader` that begins records its ids, or none."""
        expected, self._expects = self._expects, False
        return self.requested if expected and self.record else None


def _was_read(loader):
    """Reports whether the last pass over a loader has given a batch, as far as can be known."""
    last = loader.__dict__["_downshift_iterator"]()
    return last is None or last._downshift_served + getattr(last, "_num_yielded", 0) > 0


def activate(seeding):
    """Turns seeding on for the training that begins."""
    global _state
    _state = seeding
    return seeding


def active():
    """Returns the seeding of the training that runs, or none."""
    return _state


def deactivate():
    """Turns seeding off. Loaders that are being iterated keep their streams."""
    global _state
    _state = None


def describe_limits(dataset):
    """Returns why loading from this data set cannot be repeated exactly, or none."""
    torch_data = sys.modules["torch.utils.data"]
    if isinstance(dataset, torch_data.IterableDataset):
        return "an iterable data set is read again from its beginning"
    # Subsets and other wrappers keep the data set that they read from as `dataset`.
    for _ in range(WRAPPERS):
        values = getattr(dataset, "__dict__", {})
        for name, value in values.items():
            if type(value).__name__ in ("Generator", "RandomState", "Random"):
                return "the data set draws from a generator of its own ({})".format(name)
        dataset = values.get("dataset")
    return None


def newest_batches(loader):
    """Returns the newest batches of the pass over a loader, the newest last, as far as they are kept."""
    begun = loader.__dict__.get("_downshift_iterator", _nothing)()
    return list(getattr(begun, "_downshift_newest", None) or ())


def _nothing():
    return None


class Indices(list):
    """The indices of a batch, with the key of their pass. It travels to loader processes."""

    downshift = None


def install(module):
    """Hooks into torch.utils.data.dataloader. Nothing changes until `activate`."""
    from torch.utils.data._utils import fetch as fetchers

    _hook_iterator(module._BaseDataLoaderIter)
    _hook_fetcher(fetchers._MapDatasetFetcher)


def _hook_iterator(iterator):
    init, reset, next_index, next_batch = iterator.__init__, iterator._reset, iterator._next_index, iterator.__next__

    def __init__(self, loader):
        if _state is None:
            return init(self, loader)
        _begin_pass(self, loader)
        with _stream(self._downshift, "iterator"):
            init(self, loader)

    def _reset(self, loader, first_iter=False):
        if self.__dict__.get("_downshift") is None:
            return reset(self, loader, first_iter)
        if not first_iter and _state is not None:
            _begin_pass(self, loader)
        with _stream(self._downshift, "iterator"):
            reset(self, loader, first_iter)

    def _next_index(self):
        key = self.__dict__.get("_downshift")
        if key is None:
            return next_index(self)
        if self._downshift_begun:
            index = next_index(self)
        else:
            self._downshift_begun = True
            with _stream(key, "order"):
                for _ in range(self._downshift_served):
                    next_index(self)
                index = next_index(self)
        return _tag(index, key, self._downshift_recorder)

    @functools.wraps(next_batch)
    def __next__(self):
        batch = next_batch(self)
        newest = self.__dict__.get("_downshift_newest")
        if newest is not None:
            newest.append(batch)
        return batch

    iterator.__init__, iterator._reset, iterator._next_index, iterator.__next__ = __init__, _reset, _next_index, __next__


def _begin_pass(self, loader):
    """Gives an iterator the key of its pass, or that of the pass that it continues."""
    restored = loader.__dict__.pop("_downshift_restore", None)
    if restored is not None:
        self._downshift, self._downshift_served = (_state.seed, restored["epoch"], restored["pass"]), restored["served"]
        loader.__dict__["_downshift_passes"] = (restored["epoch"], restored["pass"])
    else:
        self._downshift, self._downshift_served = _state.key_of(loader), 0
    self._downshift_begun = False
    self._downshift_recorder = _state.recorder(loader)
    self._downshift_newest = collections.deque(maxlen=2) if _state.keeps_batches(loader) else None
    loader.__dict__["_downshift_iterator"] = weakref.ref(self)


def _tag(index, key, recorder):
    if not isinstance(index, (list, tuple)):
        if _state is not None and index is not None:
            _state.untagged = True
        return index
    tagged = Indices(index)
    tagged.downshift = key
    if recorder is not None:
        recorder.append((key[1], tuple(index)))
    return tagged


def _hook_fetcher(fetcher):
    original = fetcher.fetch

    def fetch(self, indices):
        key = getattr(indices, "downshift", None)
        if key is None:
            return original(self, indices)
        if sys.modules["torch.utils.data"].get_worker_info() is not None:
            return _fetch_seeded(self, indices, key, original)
        with _kept_state():
            return _fetch_seeded(self, indices, key, original)

    fetcher.fetch = fetch


def _fetch_seeded(self, indices, key, original):
    if not self.auto_collation or getattr(self.dataset, "__getitems__", None):
        _seed(key + ("batch", tuple(indices)))
        return original(self, list(indices))
    data = []
    for index in indices:
        _seed(key + (index,))
        data.append(self.dataset[index])
    _seed(key + ("collate", tuple(indices)))
    return self.collate_fn(data)


def _seed(parts):
    from downshift_cockpit import order

    order.seed_libraries(order.derive(*parts))


@contextlib.contextmanager
def _kept_state():
    from downshift_cockpit import random_state

    states = random_state.capture_host()
    try:
        yield
    finally:
        random_state.restore_host(states)


@contextlib.contextmanager
def _stream(key, purpose):
    with _kept_state():
        _seed(key + (purpose,))
        yield

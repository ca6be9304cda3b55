"""The batches of a run: which samples each micro-batch holds, and where they come from.

An epoch is cut into steps, a step into micro-batches. A step never crosses the end of an epoch, so the last one may be
smaller. The position is counted in samples: a run continues with other micro-batches or loader processes. Each rank reads
its share of every micro-batch.
"""

from __future__ import annotations

import itertools
import sys

from downshift_cockpit import fetch, order, random_state
from downshift_cockpit.excepthook import ConfigError

DEFAULT_OPTIONS = ("pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")


class Settings:
    """How the samples are cut into batches."""

    def __init__(self, epochs, micro_batch, accumulation, workers, drop_last, rank=0, world=1):
        self.epochs = epochs
        self.micro_batch = micro_batch
        self.accumulation = accumulation
        self.workers = workers
        self.drop_last = drop_last
        self.rank = rank
        self.world = world


class Micro:
    """One forward and backward pass: `samples` from the position `begin` on.

    `weight` is its share in the gradient of the step, `share` that in the loss that this process reports. `step_end` is the
    position after the step, which has `step_samples` on all ranks.
    """

    __slots__ = ("epoch", "begin", "samples", "weight", "share", "step_samples", "step_end", "is_boundary", "is_epoch_end")

    def __init__(self, epoch, begin, samples, weight, share, step_samples, step_end, is_boundary, is_epoch_end):
        self.epoch = epoch
        self.begin = begin
        self.samples = samples
        self.weight = weight
        self.share = share
        self.step_samples = step_samples
        self.step_end = step_end
        self.is_boundary = is_boundary
        self.is_epoch_end = is_epoch_end


class MapSource:
    """Samples of a data set by index, in downshift's own order."""

    def __init__(self, dataset, settings, seed, collate=None, shuffle=True, options=None):
        try:
            self.count = len(dataset)
        except TypeError:
            raise ConfigError(
                "run.batches needs a data set with a length and an index: one without has no positions to continue from. "
                "Give it a DataLoader of that data set, or index the data"
            ) from None
        self.settings = settings
        self.seed = seed
        self.shuffle = shuffle
        self.options = dict(options or {})
        self.micro_batch = settings.micro_batch
        self.workers = settings.workers
        if not self.workers:
            for name in ("prefetch_factor", "multiprocessing_context"):
                self.options.pop(name, None)
        self.collate = collate or sys.modules["torch"].utils.data.default_collate
        self.dataset = dataset
        self.reason = fetch.describe_limits(dataset)
        self.grade = "exact" if self.reason is None else "same_data"
        size = self._step_size()
        self.epoch_units = self.count // size * size if settings.drop_last else self.count
        if not self.epoch_units:
            raise ConfigError("nothing to train on: the data set has {} samples, a step takes {}".format(self.count, size))
        self.steps_per_epoch = -(-self.epoch_units // size)

    def micros(self, epoch, offset):
        """Yields the micro-batches from a position to the end of the run."""
        size = self._step_size()
        for epoch in range(epoch, self.settings.epochs):
            # After a change of the batch, whole steps of the new size are counted from the present offset.
            end = offset + (self.count - offset) // size * size if self.settings.drop_last else self.count
            for begin in range(offset, end, size):
                after = min(begin + size, end)
                yield from self._cut(epoch, begin, after, after == end)
            offset = 0

    def _step_size(self):
        return self.micro_batch * self.settings.accumulation * self.settings.world

    def _cut(self, epoch, begin, after, is_last):
        """Yields this rank's micro-batches of the step from `begin` to `after`.

        Every rank passes as often, since a reduction waits for all. Where samples are too few, a rank reads one that
        another rank counts, with the weight 0.
        """
        rank, world = self.settings.rank, self.settings.world
        found = []
        for at in range(begin, after, self.micro_batch * world):
            stop = min(at + self.micro_batch * world, after)
            share = -(-(stop - at) // world)
            first, last = min(at + rank * share, stop), min(at + rank * share + share, stop)
            found.append((first, last - first, last - first) if last > first else (stop - 1, 1, 0))
        total = after - begin
        read = sum(samples for _, samples, _ in found)
        for number, (first, samples, counted) in enumerate(found, 1):
            boundary = number == len(found)
            # A reduction takes the mean over the ranks.
            weight, part = counted * world / total, samples / read
            yield Micro(epoch, first, samples, weight, part, total, after, boundary, boundary and is_last)

    def iterate(self, position):
        """Yields pairs of micro-batch and batch, from a position on."""
        torch = sys.modules["torch"]
        loader = torch.utils.data.DataLoader(
            SeededDataset(self.dataset, self.collate, self.seed),
            batch_sampler=_Keys(self, position),
            collate_fn=_unchanged,
            num_workers=self.workers,
            generator=torch.Generator(),
            **self.options,
        )
        return zip(self.micros(position["epoch"], position["offset"]), loader)

    def ids(self, micro, orders):
        """Returns the samples of a micro-batch: (epoch, index) each. `orders` keeps the order of the last epoch."""
        if orders.get("epoch") != micro.epoch:
            orders.update(epoch=micro.epoch, order=self.order(micro.epoch))
        indices = orders["order"].indices(micro.begin, micro.begin + micro.samples)
        return [(micro.epoch, index) for index in indices]

    def order(self, epoch):
        return order.Order(self.count, self.seed, epoch, self.shuffle)

    def state(self):
        return None


class _Keys:
    """The batch sampler: the epoch, the first position and the indices of each micro-batch."""

    def __init__(self, source, position):
        self.source = source
        self.position = position

    def __iter__(self):
        epoch, present = None, None
        for micro in self.source.micros(self.position["epoch"], self.position["offset"]):
            if micro.epoch != epoch:
                epoch, present = micro.epoch, self.source.order(micro.epoch)
            yield micro.epoch, micro.begin, present.indices(micro.begin, micro.begin + micro.samples)


class SeededDataset:
    """A data set whose samples draw from random streams of their own, in any process and any batch."""

    def __init__(self, dataset, collate, seed):
        self.dataset = dataset
        self.collate = collate
        self.seed = seed

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]

    def __getitems__(self, key):
        epoch, begin, indices = key
        in_loader = sys.modules["torch"].utils.data.get_worker_info() is not None
        states = None if in_loader else random_state.capture_host()
        try:
            items = []
            for index in indices:
                order.seed_libraries(order.derive(self.seed, "sample", epoch, index))
                items.append(self.dataset[index])
            order.seed_libraries(order.derive(self.seed, "collate", epoch, begin))
            return self.collate(items)
        finally:
            if states is not None:
                random_state.restore_host(states)


def _unchanged(batch):
    return batch


class LoaderSource:
    """Batches of a DataLoader with an order of its own, read as it is."""

    grade = "same_data"

    def __init__(self, loader, settings, seed, kept=None):
        self.loader = loader
        self.settings = settings
        self.seed = seed
        self.kept = kept or {}
        self._done = self.kept.get("steps", 0)
        self.micro_batch = getattr(loader, "batch_size", None)
        self.workers = getattr(loader, "num_workers", None)
        self.steps_per_epoch = self.epoch_units = None
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            self.reason = "the loader restores its own position, but not what its processes draw at random"
        elif isinstance(getattr(loader, "dataset", None), sys.modules["torch"].utils.data.IterableDataset):
            self.grade = "weights_only"
            self.reason = "an iterable data set may not repeat its order"
        else:
            self.reason = "the DataLoader has an order of its own, which is read again up to the position"
        try:
            self.steps_per_epoch = -(-len(loader) // settings.accumulation)
            self.epoch_units = len(loader) * self.micro_batch if self.micro_batch else None
        except TypeError:
            pass

    def iterate(self, position):
        """Yields pairs of micro-batch and batch, from a position on."""
        done, state = self.kept.get("steps", 0), self.kept.get("loader")
        offset = position["offset"]
        for epoch in range(position["epoch"], self.settings.epochs):
            for number, batches in self._groups(epoch, done, state):
                sizes = [count_samples(batch) for batch in batches]
                total, is_last = sum(sizes), number == self.steps_per_epoch
                self._done = 0 if is_last else number
                step_end = offset + total
                for at, (size, batch) in enumerate(zip(sizes, batches)):
                    boundary, share = at + 1 == len(batches), size / total
                    yield Micro(epoch, offset, size, share, share, total, step_end, boundary, boundary and is_last), batch
                    offset += size
            done, state, offset = 0, None, 0

    def _groups(self, epoch, done, state):
        """Yields the number and the batches of each step of an epoch, after the first `done` steps."""
        number = 0
        if state is not None:
            self.loader.load_state_dict(state)
            number = done
        with _Seeded(self.seed, epoch, "loader"):
            batches = iter(self.loader)
        while True:
            # Loading in this process draws from its random state, which belongs to the model.
            with _Seeded(self.seed, epoch, number):
                group = list(itertools.islice(batches, self.settings.accumulation))
            if not group:
                return
            number += 1
            if number > done:
                yield number, group

    def ids(self, micro, orders):
        return [(micro.epoch, "{}+{}".format(micro.begin, micro.samples))]

    def state(self):
        stateful = hasattr(self.loader, "state_dict") and self._done
        return {"steps": self._done, "loader": self.loader.state_dict() if stateful else None}


class _Seeded:
    """Random states as a function of the key within the block, and as before after it."""

    def __init__(self, *key):
        self.key = order.derive(*key)

    def __enter__(self):
        self.states = random_state.capture_host()
        order.seed_libraries(self.key)

    def __exit__(self, *error):
        random_state.restore_host(self.states)


def count_samples(batch):
    """Returns the number of samples in a batch: the length of its first tensor, or of the batch itself."""
    torch = sys.modules["torch"]
    waiting = [batch]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor) and value.dim():
            return len(value)
        if isinstance(value, dict) or hasattr(value, "keys"):
            waiting += reversed([value[key] for key in value.keys()])
        elif isinstance(value, (list, tuple)):
            waiting += reversed(value)
    return len(batch) if hasattr(batch, "__len__") else 1


def take_apart(loader):
    """Returns (shuffle, options) of a plain DataLoader whose order downshift may choose; none if it has its own."""
    data = sys.modules["torch"].utils.data
    if type(loader) is not data.DataLoader or isinstance(loader.dataset, data.IterableDataset):
        return None
    sampler = loader.sampler
    if type(loader.batch_sampler) is not data.BatchSampler or loader.batch_size is None:
        return None
    if type(sampler) is data.SequentialSampler:
        shuffle = False
    elif type(sampler) is data.distributed.DistributedSampler:
        shuffle = sampler.shuffle
    elif type(sampler) is data.RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset):
        shuffle = True
    else:
        return None
    options = {name: getattr(loader, name) for name in DEFAULT_OPTIONS if getattr(loader, name, None) is not None}
    return shuffle, options


def open_source(dataset, settings, knob, seed, collate, shuffle, options, kept):
    """Returns the source of the batches. `knob` gives the values of the rung, `kept` is the source's state at a resume."""
    settings.accumulation = int(knob("training.accumulation", settings.accumulation))
    if hasattr(dataset, "batch_sampler") and hasattr(dataset, "dataset"):
        plain = take_apart(dataset)
        if plain is None and settings.world > 1:
            message = (
                "run.batches cannot share the batches of this DataLoader among {} ranks: it has an order of its own. Give it the "
                "data set, or a DataLoader with a RandomSampler, a SequentialSampler or a DistributedSampler"
            )
            raise ConfigError(message.format(settings.world))
        if plain is None:
            return LoaderSource(dataset, settings, seed, kept)
        shuffle, options = plain[0], dict(plain[1], **options)
        settings.micro_batch = settings.micro_batch or dataset.batch_size
        settings.workers, settings.drop_last = dataset.num_workers, dataset.drop_last
        collate, dataset = collate or dataset.collate_fn, dataset.dataset
    settings.micro_batch = int(knob("training.micro_batch", settings.micro_batch) or 0)
    settings.workers = int(knob("knobs.loader_processes", settings.workers))
    if settings.micro_batch < 1 or settings.accumulation < 1:
        raise ConfigError("run.batches needs a batch_size and an accumulation of at least 1")
    return MapSource(dataset, settings, seed, collate, shuffle, options)

"""The passes over the prepared loaders of an accelerate loop, and what of them can be repeated."""

from __future__ import annotations

from downshift_cockpit import batch_content, fetch


class Seeding(fetch.Seeding):
    """Numbers the passes of each data set: a loader that skips batches belongs to the same ones."""

    def __init__(self, seed):
        super().__init__(seed)
        self._passes, self._begun = {}, None

    def begin(self, dataset, number=None):
        """Begins the next pass over a data set, or the one of this number. Returns its number."""
        known = self._passes.get(id(dataset), (dataset, -1))
        number = known[1] + 1 if number is None else number
        self._passes[id(dataset)] = (dataset, number)
        self._begun = dataset
        return number

    def key_of(self, loader):
        if self._begun is not loader.dataset:
            self.begin(loader.dataset)
        self._begun = None
        return (self.seed, 0, self._passes[id(loader.dataset)][1])

    def keeps_batches(self, loader):
        return True


class Pass:
    """A pass that the script iterates, and the batches that it was given."""

    def __init__(self, loader, number, served, held=0):
        self.loader, self.number, self.served = loader, number, served
        self.iteration = loader.iteration
        # How often the first batch is handed out again until the script trains on it.
        self.held = held
        # The digest of the batch that is handed out.
        self.digest = None

    def look_at_batch(self):
        """Looks at the batch that is about to be handed out: afterwards the script may change it."""
        batch = self._newest()[0]
        self.digest = None if batch is None else batch_content.digest(batch)

    def digest_of_next(self):
        """Returns the digest of the batch behind the one that was handed out; none at the end of a pass."""
        batch = self._newest()[1]
        return None if batch is None else batch_content.digest(batch)

    def _newest(self):
        """Returns the batch that accelerate hands out and the next one, which it has fetched ahead."""
        kept = fetch.newest_batches(self.loader.base_dataloader)
        if self.loader.end_of_dataloader:
            kept.append(None)
        return kept[-2:] if len(kept) > 1 else (None, None)


def describe_limits(loader):
    """Returns why the passes over a loader cannot be repeated, or none."""
    if type(loader).__name__ != "DataLoaderShard":
        return "the batches are dispatched by accelerate"
    limits = fetch.describe_limits(loader.dataset)
    if limits is not None:
        return limits
    batches = base_sampler(loader)
    if not hasattr(batches, "__len__"):
        return "the batch sampler has no length"
    for sampler in (batches, getattr(batches, "sampler", None)):
        drawn = [type(value).__name__ for value in getattr(sampler, "__dict__", {}).values()]
        if type(sampler).__name__ != "SeedableRandomSampler" and not {"Generator", "RandomState", "Random"}.isdisjoint(drawn):
            return "the sampler draws from a generator of its own"
    return None


def base_sampler(loader):
    """Returns the script's own batch sampler: accelerate keeps it within its own."""
    sampler = loader.batch_sampler
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return sampler


def count_skipped(loader):
    """Returns the batches that the script itself lets a loader skip."""
    return int(getattr(loader.batch_sampler, "skip_batches", 0) or getattr(loader, "skip_batches", 0) or 0)

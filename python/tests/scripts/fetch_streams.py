"""Prints, as JSON, what loaders of several kinds hand out while fetches are seeded, and the state they leave behind."""

import json
import random

import numpy
import torch
from downshift_cockpit import fetch

torch.set_num_threads(1)


class Noise(torch.utils.data.Dataset):
    def __init__(self, generator=None):
        self.generator = generator

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return [index, random.random(), float(numpy.random.rand()), float(torch.rand(()))]


def read(batch_size=3, epochs=1, dataset=None, **options):
    fetch.activate(fetch.Seeding(5))
    loader = torch.utils.data.DataLoader(
        dataset or Noise(), batch_size=batch_size, shuffle=True, collate_fn=list, **options
    )
    rows = []
    for epoch in range(epochs):
        fetch.active().begin_epoch(epoch)
        rows += [row for batch in loader for row in batch]
    fetch.deactivate()
    return rows


if __name__ == "__main__":
    torch.manual_seed(9)
    before = torch.get_rng_state()
    found = {
        "plain": read(),
        "fork": read(num_workers=2),
        "spawn": read(num_workers=2, multiprocessing_context="spawn"),
        "batches of 4": read(batch_size=4),
        "two epochs": read(epochs=2),
        "persistent": read(epochs=2, num_workers=2, persistent_workers=True),
    }
    found["untouched"] = bool((before == torch.get_rng_state()).all())
    subset = torch.utils.data.Subset(Noise(numpy.random.default_rng(0)), range(4))
    found["limits"] = [fetch.describe_limits(Noise()), fetch.describe_limits(subset)]
    print(json.dumps(found))

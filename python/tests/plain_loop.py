"""A plain loop with everything that a resume can forget: dropout, random augmentation in loader processes, a scheduler,
clipping, a batch norm, an average of the weights, and draws from all random streams between the steps.

Each step appends a line to LOG: step, loss, sample ids, all in full precision. At the end, a hash of all weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time

import numpy
import torch

import downshift

def forget(part):
    """Disables one step of a resume, for the controls."""
    from downshift_cockpit import loop, snapshot

    if part == "random":
        snapshot.restore_random = lambda kept: None
    elif part == "position":
        restore_position = loop.Run._restore_position

        def restore_beginning(run, kept):
            restore_position(run, kept)
            run._position.update(epoch=0, offset=0)

        loop.Run._restore_position = restore_beginning
    else:
        getattr(snapshot, "restore_" + part)
        setattr(snapshot, "restore_" + part, lambda parts, kept: None)


class Pictures(torch.utils.data.Dataset):
    """Samples that differ each time they are drawn."""

    def __init__(self, count):
        self.values = torch.randn(count, 12, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(12) + float(numpy.random.rand()) * 0.1
        flipped = self.values[index].flip(0) if random.random() < 0.5 else self.values[index]
        return flipped + noise, self.values[index].sum(), index


class Average:
    """An average of the weights, a state of the script's own."""

    def __init__(self, model):
        self.kept = {name: value.detach().clone() for name, value in model.named_parameters()}

    def update(self, model):
        for name, value in model.named_parameters():
            self.kept[name].lerp_(value.detach(), 0.1)

    def state_dict(self):
        return self.kept

    def load_state_dict(self, state):
        for name, value in state.items():
            self.kept[name].copy_(value)


def read_log(path):
    """Returns the steps of a log, and the hash of the weights. A step that was taken again must have been the same."""
    steps, weights, differences = {}, None, []
    with open(path, encoding="utf-8") as file:
        for text in file:
            if not text.endswith("\n"):
                continue
            line = json.loads(text)
            if "weights" in line:
                weights = line["weights"]
            elif steps.setdefault(line["step"], line) != line:
                differences.append(line["step"])
    return steps, weights, differences


def main(given=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--forget")
    parser.add_argument("--no-randomness", action="store_true", help="no dropout and no batch norm")
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--loader", action="store_true", help="hands over a DataLoader with an order of its own")
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--fids", default="", help="an evaluation after each of the first steps, in order")
    arguments = parser.parse_args(given)
    if arguments.forget:
        forget(arguments.forget)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    middle = [] if arguments.no_randomness else [torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)]
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), *middle, torch.nn.Linear(16, 1))
    head = torch.nn.Linear(1, 1)
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9),
    ]
    schedulers = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], T_max=40),
        torch.optim.lr_scheduler.MultiStepLR(optimizers[1], milestones=[5, 20], gamma=0.5),
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7) if arguments.scaler else None
    average = Average(model)
    run = downshift.attach([model, head], optimizers, schedulers, scaler, clip=0.5, others={"average": average})
    data = Pictures(arguments.count)
    if arguments.loader:
        weights = torch.rand(len(data), generator=torch.Generator().manual_seed(3))
        sampler = torch.utils.data.WeightedRandomSampler(weights, len(data))
        data = torch.utils.data.DataLoader(data, arguments.batch_size, sampler=sampler, num_workers=arguments.workers)
    fids = [float(fid) for fid in arguments.fids.split(",") if fid]
    ids, losses = [], []
    with open(arguments.log, "a", encoding="utf-8") as log:
        for inputs, targets, indices in run.batches(
            data,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            accumulation=arguments.accumulation,
            workers=arguments.workers,
        ):
            loss = torch.nn.functional.mse_loss(head(model(inputs)).squeeze(1), targets)
            ids += indices.tolist()
            losses.append(loss.item() * len(indices))
            boundary, epoch = run.is_boundary, run.epoch
            run.step(loss)
            if boundary:
                average.update(model)
                drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
                line = {"step": run.step_number, "epoch": epoch, "loss": (sum(losses) / len(ids)).hex(), "ids": ids, "drawn": drawn}
                log.write(json.dumps(line) + "\n")
                log.flush()
                ids, losses = [], []
                if run.step_number <= len(fids):
                    run.evaluated(loss=1.0, fid=fids[run.step_number - 1])
                if arguments.step_ms:
                    time.sleep(arguments.step_ms / 1e3)
        digest = hashlib.sha256()
        for part in (model, head):
            for name, value in sorted(part.state_dict().items()):
                digest.update(name.encode() + value.numpy().tobytes())
        for name, value in sorted(average.kept.items()):
            digest.update(value.numpy().tobytes())
        log.write(json.dumps({"weights": digest.hexdigest()}) + "\n")


if __name__ == "__main__":
    main()

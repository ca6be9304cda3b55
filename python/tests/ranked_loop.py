"""The loop of `plain_loop` on several ranks: with DistributedDataParallel, or with weights spread over the ranks.

Each rank appends a line to LOG.RANK at each step: loss, sample ids, draws, all in full precision. At the end, hashes of the
weights that it holds and, without those that each rank keeps for itself, of the parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time

import numpy
import torch
import torch.distributed as dist
from plain_loop import Pictures

import downshift


FAULTS = ("raise", "oom", "nan", "stop", "sleep", "lock", "data", "compute", "evaluate", "save", "partition")


def main(given=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--sharded", action="store_true", help="fully_shard in place of DistributedDataParallel")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=92)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--forget-part", action="store_true", help="a rank resumes from the part of rank 0, for the control")
    parser.add_argument("--fail", help="KIND@STEP: what a rank does in a step: " + ", ".join(FAULTS))
    parser.add_argument("--fail-rank", type=int, help="the rank that does it; the last one by default")
    parser.add_argument("--fail-seconds", type=float, default=3600.0)
    parser.add_argument("--other-torch", help="the version that the last rank claims to have")
    arguments = parser.parse_args(given)
    if arguments.forget_part:
        from downshift_cockpit import snapshot

        snapshot.read = lambda folder, present: snapshot.Kept(folder)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(7 + rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 17), torch.nn.Tanh(), torch.nn.BatchNorm1d(17), torch.nn.Dropout(0.3), torch.nn.Linear(17, 1)
    )
    if arguments.sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    if arguments.other_torch and rank == world - 1:
        torch.__version__ = arguments.other_torch
    run = downshift.attach(model, optimizer, scheduler, clip=0.5)
    kind, _, at = (arguments.fail or "").partition("@")
    is_faulty = bool(kind) and rank == (world - 1 if arguments.fail_rank is None else arguments.fail_rank)
    fault = Fault(kind, arguments.fail_seconds, "{}.fault".format(arguments.log)) if is_faulty else None
    pictures = Pictures(arguments.count)
    if fault is not None and kind == "data":
        pictures = fault.delay(pictures, run, int(at))
    if fault is not None and kind == "save":
        fault.delay_save(int(at))
    ids, losses = [], []
    settings = {"epochs": arguments.epochs, "batch_size": arguments.batch_size, "accumulation": arguments.accumulation}
    with open("{}.{}".format(arguments.log, rank), "a", encoding="utf-8") as log:
        for inputs, targets, indices in run.batches(pictures, **settings):
            loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets)
            if fault is not None and run.step_number + 1 == int(at):
                loss = fault.strike(loss, run)
            ids += indices.tolist()
            losses.append(loss.item())
            boundary = run.is_boundary
            run.step(loss)
            if boundary:
                drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
                line = {"step": run.step_number, "epoch": run.epoch, "loss": [value.hex() for value in losses], "ids": ids, "drawn": drawn}
                log.write(json.dumps(line) + "\n")
                log.flush()
                ids, losses = [], []
                if arguments.step_ms:
                    time.sleep(arguments.step_ms / 1e3)
        hashes = {"weights": hash_of(model.state_dict()), "parameters": hash_of(dict(model.named_parameters()))}
        log.write(json.dumps(hashes) + "\n")
    dist.destroy_process_group()


def hash_of(tensors):
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        value = value.to_local() if hasattr(value, "to_local") else value
        digest.update(name.encode() + value.detach().numpy().tobytes())
    return digest.hexdigest()


class Fault:
    """What a rank does in one step: before the reduction, or where its kind says."""

    def __init__(self, kind, seconds, marker):
        self.kind, self.seconds, self.marker = kind, seconds, marker
        self.struck = False

    def strike(self, loss, run):
        if self.struck or self.kind in ("data", "save"):
            return loss
        self.struck = True
        self.mark()
        if self.kind == "nan":
            return loss * float("nan")
        if self.kind == "oom":
            raise torch.OutOfMemoryError("Tried to allocate 64.00 GiB")
        if self.kind == "raise":
            raise ValueError("sample 17 has no label")
        if self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "sleep":
            time.sleep(self.seconds)
        elif self.kind == "partition":
            subprocess.run(["ip", "link", "set", os.environ["GLOO_SOCKET_IFNAME"], "down"], check=True)
        elif self.kind == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire(timeout=self.seconds)
        elif self.kind == "compute":
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                torch.ones(64, 64) @ torch.ones(64, 64)
        elif self.kind == "evaluate":
            with run.evaluating():
                time.sleep(self.seconds)
        return loss

    def mark(self):
        with open(self.marker, "w", encoding="utf-8") as file:
            file.write(repr(time.time()))

    def delay(self, pictures, run, at):
        """Delays the first sample of a step."""
        fault = self

        class Slow:
            def __len__(self):
                return len(pictures)

            def __getitem__(self, index):
                if not fault.struck and run.step_number + 1 == at:
                    fault.struck = True
                    fault.mark()
                    time.sleep(fault.seconds)
                return pictures[index]

        return Slow()

    def delay_save(self, at):
        """Delays the copy of the first checkpoint from a step on."""
        from downshift_cockpit import snapshot

        original = snapshot.Capture.take

        def take(capture, header):
            if not self.struck and header["step"] >= at:
                self.struck = True
                self.mark()
                time.sleep(self.seconds)
            return original(capture, header)

        snapshot.Capture.take = take


if __name__ == "__main__":
    main()

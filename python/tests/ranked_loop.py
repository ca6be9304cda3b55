"""The loop of `plain_loop` on several ranks: with DistributedDataParallel, or with weights spread over the ranks.

Each rank appends a line to LOG.RANK at each step: loss, sample ids, draws, all in full precision. At the end, hashes of the
weights that it holds and, without those that each rank keeps for itself, of the parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time

import numpy
import torch
import torch.distributed as dist
from plain_loop import Pictures

import downshift


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
    parser.add_argument("--fail", help="KIND@STEP: what the last rank does before a reduction: raise, oom or nan")
    parser.add_argument("--other-torch", help="the version that the last rank claims to have")
    arguments = parser.parse_args(given)
    if arguments.forget_part:
        from downshift import snapshot

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
    ids, losses = [], []
    settings = {"epochs": arguments.epochs, "batch_size": arguments.batch_size, "accumulation": arguments.accumulation}
    with open("{}.{}".format(arguments.log, rank), "a", encoding="utf-8") as log:
        for inputs, targets, indices in run.batches(Pictures(arguments.count), **settings):
            loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets)
            if kind and rank == world - 1 and run.step_number + 1 == int(at):
                loss = fail(kind, loss)
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


def fail(kind, loss):
    if kind == "nan":
        return loss * float("nan")
    raise torch.OutOfMemoryError("Tried to allocate 64.00 GiB") if kind == "oom" else ValueError("sample 17 has no label")


if __name__ == "__main__":
    main()

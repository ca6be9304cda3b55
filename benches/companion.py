"""Measures what the companion adds to a step of a plain loop: `python benches/companion.py [STEPS]`.

A loop with a model of two parameters takes steps through `run.step`, and the same loop without downshift does the same
work: backward, norm, clipping, reading the loss, optimizer, scheduler. Blocks of both alternate; the difference is the
cost of the companion: the guard, the report of each step to a harness in another process, and the step border. Processor
time is counted, that of the companion's threads too. Loading is not: the streams of the samples are drawn in loader
processes, or at the cost printed last.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "companion"))

import torch

import downshift
from downshift import order, random_state, wire

torch.set_num_threads(1)
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
BLOCK = 100
LIMIT_US = 50.0


def start_harness(folder):
    """Starts a process that reads whatever the companion says."""
    path = os.path.join(folder, "companion.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    child = os.fork()
    if not child:
        connection, _ = listener.accept()
        while connection.recv(1 << 16):
            pass
        os._exit(0)
    listener.close()
    settings = {"protocol": 1, "socket": path, "run_dir": folder, "attempt_dir": folder, "staging": folder, "seed": 1}
    with open(os.path.join(folder, "companion.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file)
    os.environ[wire.VARIABLE] = os.path.join(folder, "companion.json")
    return child


class Numbers(torch.utils.data.Dataset):
    """Samples that cost nothing."""

    def __len__(self):
        return 10 * STEPS

    def __getitem__(self, index):
        return index


def make_training():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=1)


def measure():
    """Returns seconds of this thread a step, with and without the companion, for each block."""
    inputs = torch.randn(4, 8)
    bare, clock = make_training(), time.thread_time
    run = downshift.attach(*make_training(), clip=1.0)
    model, leave = run._parts.models[""], run._leave
    loader = iter(torch.utils.data.DataLoader(Numbers()))
    with_companion, without = [], []

    def timed_leave(micro):
        begun = clock()
        leave(micro)
        with_companion[-1] += (clock() - begun) / BLOCK

    run._leave = timed_leave
    for number, _ in enumerate(run.batches(Numbers(), batch_size=1)):
        if number == STEPS:
            break
        if number % BLOCK == 0:
            without.append(time_bare(*bare, inputs, loader))
            with_companion.append(0.0)
        begun = clock()
        run.step(model(inputs).sum())
        with_companion[-1] += (clock() - begun) / BLOCK
    return with_companion, without


def time_bare(model, optimizer, scheduler, inputs, loader):
    """Returns seconds a step of the loop without downshift; loading is not counted here either."""
    spent = 0.0
    for _ in range(BLOCK):
        next(loader)
        begun = time.thread_time()
        loss = model(inputs).sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        loss.item(), norm.item()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        spent += time.thread_time() - begun
    return spent / BLOCK


def time_streams(samples=2000):
    """Returns microseconds for the streams of one sample, and for putting the states back once a batch."""
    begun = time.thread_time()
    for index in range(samples):
        order.seed_libraries(order.derive(1, "sample", 0, index))
    each = time.thread_time() - begun
    begun = time.thread_time()
    for _ in range(samples):
        random_state.restore_host(random_state.capture_host())
    return each / samples * 1e6, (time.thread_time() - begun) / samples * 1e6


def main():
    with tempfile.TemporaryDirectory() as folder:
        harness = start_harness(folder)
        threads = time.process_time() - time.thread_time()
        with_companion, without = measure()
        threads = (time.process_time() - time.thread_time() - threads) / STEPS * 1e6
        wire.companion().flush(10)
        sample_us, batch_us = time_streams()
        os.kill(harness, 9)
        os.waitpid(harness, 0)
    # Other work on the machine only adds, also to processor time, through shared caches: the calmest tenth of the blocks counts.
    calm = [statistics.quantiles(blocks, n=10)[0] * 1e6 for blocks in (without, with_companion)]
    added = calm[1] - calm[0] + threads
    print("steps {}, blocks of {}".format(STEPS, BLOCK))
    for name, blocks, value in (("bare loop", without, calm[0]), ("with companion", with_companion, calm[1])):
        print("{:14} {:6.1f} µs a step (median of all blocks {:.1f})".format(name, value, statistics.median(blocks) * 1e6))
    print("{:14} {:6.1f} µs a step".format("its threads", threads))
    print("{:14} {:6.1f} µs a step".format("added", added))
    print("streams        {:6.1f} µs a sample, {:.1f} µs a batch without loader processes".format(sample_us, batch_us))
    if added > LIMIT_US:
        sys.exit("the companion costs more than {} µs a step".format(LIMIT_US))


if __name__ == "__main__":
    main()

"""Measures what the companion adds to a step of a plain loop: `python benches/companion.py [STEPS | --pairs PAIRS]`.

A loop with a model of two parameters takes steps through `run.step`, and the same loop without downshift does the same
work: backward, norm, clipping, reading the loss, optimizer, scheduler. Blocks of both alternate; the difference is the
cost of the companion: the guard, the report of each step to a harness in another process, and the step border. Processor
time is counted, that of the companion's threads too. Loading is not: both loops have a loader process, and there the streams
of the samples are drawn. A loop without loader processes draws them itself, at the cost printed last.

`--pairs 300` measures the whole: pairs of steps of 100 ms, one with the companion and one without, loading included, in
changing order. The ratio of their wall-clock times, and the upper end of its 95 % interval, by a bootstrap over the pairs.
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "companion"))

import torch

import downshift
from downshift_cockpit import order, random_state, wire

torch.set_num_threads(1)
PAIRS = int(sys.argv[2]) if sys.argv[1:2] == ["--pairs"] else None
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 and PAIRS is None else 100_000
BLOCK = 100
LIMIT_US = 50.0
LONG_STEP_SECONDS = 0.1
LIMIT_RATIO = 1.02
WIDTH = 1024
WARM_UP = 5
RESAMPLES = 10_000


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


def make_training(inputs=8, outputs=1):
    model = torch.nn.Linear(inputs, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=1)


def measure():
    """Returns seconds of this thread a step, with and without the companion, for each block; and those of other threads."""
    inputs = torch.randn(4, 8)
    bare, clock = make_training(), time.thread_time
    run = downshift.attach(*make_training(), clip=1.0)
    model, leave = run._parts.models[""], run._leave
    loader = iter(torch.utils.data.DataLoader(Numbers(), num_workers=1))
    with_companion, without, threads = [], [], time_threads()

    def timed_leave(micro):
        begun = clock()
        leave(micro)
        with_companion[-1] += (clock() - begun) / BLOCK

    run._leave = timed_leave
    for number, _ in enumerate(run.batches(Numbers(), batch_size=1, workers=1)):
        if number == STEPS:
            break
        if number % BLOCK == 0:
            without.append(time_bare(*bare, inputs, loader))
            with_companion.append(0.0)
        begun = clock()
        run.step(model(inputs).sum())
        with_companion[-1] += (clock() - begun) / BLOCK
    return with_companion, without, time_threads() - threads


def time_bare(model, optimizer, scheduler, inputs, loader):
    """Returns seconds a step of the loop without downshift; loading is not counted here either."""
    spent = 0.0
    for _ in range(BLOCK):
        next(loader)
        begun = time.thread_time()
        step_bare(model, optimizer, scheduler, inputs)
        spent += time.thread_time() - begun
    return spent / BLOCK


def step_bare(model, optimizer, scheduler, inputs):
    """Takes a step without downshift."""
    loss = model(inputs).sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    loss.item(), norm.item()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def time_threads():
    """Returns seconds of all other threads but those that feed the loader processes, which a bare loop has too."""
    feeders = [thread for thread in threading.enumerate() if "Feeder" in thread.name]
    fed = sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in feeders)
    return time.process_time() - time.thread_time() - fed


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


def time_call(call, *arguments):
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


def measure_pairs(pairs):
    """Returns seconds of the steps of each pair: with the companion, without it."""
    bare, loader = make_training(WIDTH, WIDTH), iter(torch.utils.data.DataLoader(Numbers()))
    run = downshift.attach(*make_training(WIDTH, WIDTH), clip=1.0)
    model, batches = run._parts.models[""], iter(run.batches(Numbers(), batch_size=1))

    def take_step(with_companion):
        if with_companion:
            next(batches)
            run.step(model(inputs).sum())
        else:
            next(loader)
            step_bare(*bare, inputs)

    rows = 64
    for _ in range(3):
        inputs = torch.randn(rows, WIDTH)
        rows = max(1, round(rows * LONG_STEP_SECONDS / min(time_call(take_step, False) for _ in range(WARM_UP))))
    inputs = torch.randn(rows, WIDTH)
    found = []
    for _ in range(WARM_UP + pairs):
        times = {with_companion: time_call(take_step, with_companion) for with_companion in random.sample((True, False), 2)}
        found.append((times[True], times[False]))
    return found[WARM_UP:]


def print_ratio(found):
    """Prints the ratio of the times, and ends the program with an error if it may be above the limit."""
    def ratio(pairs):
        return sum(with_companion for with_companion, _ in pairs) / sum(without for _, without in pairs)

    resampled = sorted(ratio(random.choices(found, k=len(found))) for _ in range(RESAMPLES))
    upper = resampled[round(0.975 * RESAMPLES) - 1]
    print("{} pairs of steps of {:.0f} ms".format(len(found), statistics.median(without for _, without in found) * 1e3))
    print("ratio {:.4f}, at most {:.4f} (95 %)".format(ratio(found), upper))
    if upper > LIMIT_RATIO:
        sys.exit("a step may take more than {} times as long with the companion".format(LIMIT_RATIO))


def main():
    with tempfile.TemporaryDirectory() as folder:
        harness = start_harness(folder)
        if PAIRS is not None:
            print_ratio(measure_pairs(PAIRS))
            os.kill(harness, 9)
            os.waitpid(harness, 0)
            return
        with_companion, without, threads = measure()
        threads *= 1e6 / STEPS
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

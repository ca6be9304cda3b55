"""Plays the ranks of a training for `benches/harness.rs`: `python ranks.py RANKS STEPS_PER_SECOND`.

Each rank is a process that enters the phases of a step through the companion, as a real loop does, and sleeps instead of
computing. Rank 0 reports each step.
"""

import os
import random
import sys
import time


def play(rank, world, per_second):
    from downshift_cockpit import rank_file, wire

    companion = wire.companion()
    file = rank_file.open_for(companion, rank, world)
    companion.send({
        "event": "companion", "protocol": 1, "pid": os.getpid(), "rank": rank, "world": world, "framework": "loop",
        "grade": "exact", "saves": False, "rank_file": file.path,
    })  # fmt: skip
    begun, step, draw = time.monotonic(), 0, random.Random(rank)
    while True:
        step += 1
        due = begun + step / per_second
        file.enter(rank_file.DATA)
        file.enter(rank_file.COMPUTE)
        time.sleep(max(0.0, due - time.monotonic()))
        file.enter(rank_file.REDUCTION)
        file.took(step, 2.0 + draw.random())
        file.enter(rank_file.SCRIPT)
        if rank == 0:
            companion.send({
                "event": "step", "step": step, "samples": step * world, "epoch": 0, "loss": 2.3, "lr": 1e-3, "grad_norm": 1.0,
                "micro_batches": 1, "data_wait_ms": 0.1, "compute_ms": 1000.0 / per_second,
            })  # fmt: skip


def main():
    world, per_second = int(sys.argv[1]), float(sys.argv[2])
    rank = 0
    # Before the companion is loaded: it is silent in the child of a process that it knows.
    for number in range(1, world):
        if rank == 0 and not os.fork():
            rank = number
    play(rank, world, per_second)


if __name__ == "__main__":
    main()

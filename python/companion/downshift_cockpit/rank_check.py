"""One rank of `downshift doctor --ranks`: joins the others, then sums, waits and measures, and says each on a line of JSON.

Whoever started it holds the clock, and ends it. It ends by itself once that process is gone.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import threading
import time

# As many as a bucket of gradients has.
BANDWIDTH_BYTES = 16 << 20
REPEATS = 8
# The process that started this one gives up sooner.
NEVER = datetime.timedelta(days=1)


class Rank:
    """This process among the ranks."""

    def __init__(self, rank, world):
        self.rank = rank
        self.world = world
        self.torch = self.device = None

    def start(self):
        import torch

        self.torch = torch
        torch.set_num_threads(1)
        cards = torch.cuda.device_count()
        if 0 < cards < self.world:
            seen = "1 is" if cards == 1 else "{} are".format(cards)
            raise RuntimeError("{0} ranks need {0} GPUs, and {1} visible".format(self.world, seen))
        self.device = torch.device("cuda", self.rank) if cards else torch.device("cpu")
        return {
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "backend": "nccl" if cards else "gloo",
            "device": torch.cuda.get_device_name(self.device) if cards else "CPU",
        }

    def init(self):
        import torch.distributed as dist

        if self.device.type == "cuda":
            self.torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=NEVER)

    def all_reduce(self):
        value = self.torch.full((1,), float(self.rank + 1), device=self.device)
        self.torch.distributed.all_reduce(value)
        wanted = self.world * (self.world + 1) / 2
        if value.item() != wanted:
            raise RuntimeError("the sum over the ranks is {} instead of {}".format(value.item(), wanted))

    def barrier(self):
        ids = {"device_ids": [self.rank]} if self.device.type == "cuda" else {}
        self.torch.distributed.barrier(**ids)

    def bandwidth(self):
        values = self.torch.ones(BANDWIDTH_BYTES // 4, device=self.device)
        seconds = []
        for _ in range(REPEATS):
            began = time.monotonic()
            self.torch.distributed.all_reduce(values)
            if self.device.type == "cuda":
                self.torch.cuda.synchronize(self.device)
            seconds.append(time.monotonic() - began)
        # What each link carries: a ring passes every part on to all but one.
        moved = BANDWIDTH_BYTES * max(1.0, 2 * (self.world - 1) / self.world)
        return {"bytes_per_s": moved / sorted(seconds)[len(seconds) // 2]}


def main():
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    for step in (rank.start, rank.init, rank.all_reduce, rank.barrier, rank.bandwidth):
        began = time.monotonic()
        try:
            found = step() or {}
        except BaseException as error:
            text = " ".join("{}: {}".format(type(error).__name__, error).split())
            _say(failed=step.__name__, message=text[:500])
            _leave(1)
        _say(done=step.__name__, seconds=time.monotonic() - began, **found)
    _leave(0)


def _say(**values):
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _leave(code):
    """Ends at once: the teardown of a group may wait for the others."""
    sys.stderr.flush()
    os._exit(code)


def _leave_with(parent):
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    main()

"""Two ranks under torchrun and the real program: `kill -9` of ranks, torchrun, harness and keeper at random moments changes
nothing and leaves nothing behind; a rank that fails is named as the cause, and a NaN loss of one drops the step on all.

Run by the interpreter whose PyTorch the script uses: `python python/tests/end_to_end_ranks.py [--kills 6] [--seed 7]
[--program DOWNSHIFT]`. Losses, sample ids, draws and final weights of each rank are compared bit by bit with those of an
unbroken run, for DistributedDataParallel and for sharded weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time

# This script's folder is on the path; importing the other one adds the companion's.
from end_to_end_loop import HERE, STEPS_PER_EPOCH, STEPS_PER_KILL, Run
from program import PROGRAM

SCRIPT = os.path.join(HERE, "ranked_loop.py")
WORLD = 2
GONE_SECONDS = 5.0
# As many samples in a step as one of 4 has.
TWO_MICRO_BATCHES = ("--batch-size=2", "--accumulation=2")

RUN_FILE = """\
name: ranked
task: command
command: [{torchrun}, --standalone, --nproc-per-node={world}, --max-restarts=0, {script}, "{{run_dir}}/steps.log", {arguments}]
environment: {{ OMP_NUM_THREADS: 1 }}
knobs: {{ seed: 5 }}
watch:
  autopilot: false
  restarts_without_progress: {restarts}
  restarts_in_window: 100000
  spike: {{ sigma: 0 }}
"""


def run_file(arguments, restarts=1000, world=WORLD):
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    return RUN_FILE.format(
        torchrun=torchrun, world=world, script=SCRIPT, arguments=", ".join(arguments), restarts=restarts
    )


class RankedRun(Run):
    """A run of several ranks; its log is one file for each."""

    ROLES = ("rank 0", "rank 1", "launcher", "harness", "keeper")

    def log(self, rank=0):
        return os.path.join(self.run_dir() or self.folder, "steps.log.{}".format(rank))

    def logs(self):
        import plain_loop

        return [plain_loop.read_log(self.log(rank)) for rank in range(WORLD)]

    def parameters(self, rank):
        """Returns the hash of the parameters of a rank that ended."""
        with open(self.log(rank), encoding="utf-8") as file:
            return json.loads(file.readlines()[-1])["parameters"]

    def pid_of(self, role):
        """Returns the process that plays a role now, or none."""
        if role in ("keeper", "harness"):
            return super().pid_of(role)
        try:
            with open(os.path.join(self.run_dir(), "worker.lock"), encoding="utf-8") as file:
                below = descendants(json.load(file)["pid"])
        except (OSError, ValueError, KeyError):
            return None
        for pid in below:
            rank = variable(pid, b"RANK")
            if SCRIPT.encode() in command_of(pid) and role == ("launcher" if rank is None else "rank {}".format(rank.decode())):
                return pid
        return None

    def find_attempt(self):
        found = [self.pid_of(role) for role in self.ROLES if role not in ("harness", "keeper")]
        return [pid for pid in found if pid]

    def wait_gone(self, attempt, role):
        # Those of a killed keeper live on: the next keeper adopts them.
        until = time.monotonic() + GONE_SECONDS
        while role != "keeper" and any(SCRIPT.encode() in command_of(pid) for pid in attempt):
            if time.monotonic() > until:
                self.fail("processes are left {} s after the {} was killed: {}".format(GONE_SECONDS, role, attempt))
            time.sleep(0.05)


def descendants(root):
    found = [root]
    for pid in found:
        try:
            with open("/proc/{0}/task/{0}/children".format(pid), encoding="utf-8") as file:
                found += [int(child) for child in file.read().split()]
        except OSError:
            pass
    return found[1:]


def command_of(pid):
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def variable(pid, name):
    try:
        with open("/proc/{}/environ".format(pid), "rb") as file:
            found = [entry[len(name) + 1 :] for entry in file.read().split(b"\0") if entry.startswith(name + b"=")]
    except OSError:
        return None
    return found[0] if found else None


def expect_skip(program):
    """A NaN loss of the last rank drops step 5 on both, which then have equal weights: the gradients of two micro-batches are
    reduced in the last one of a step."""
    with tempfile.TemporaryDirectory() as folder:
        run = RankedRun(program, folder, run_file([*TWO_MICRO_BATCHES, "--fail=nan@5", "--epochs=1"]))
        run.wait_end()
        with open(run.journal, encoding="utf-8") as journal:
            if "step 5 skipped" not in journal.read():
                run.fail("no step was skipped")
        steps = [sorted(steps) for steps, _, _ in run.logs()]
        hashes = [run.parameters(rank) for rank in range(WORLD)]
        if steps != [list(range(1, STEPS_PER_EPOCH + 1))] * WORLD or len(set(hashes)) != 1:
            run.fail("the ranks have parted: {} {}".format(steps, hashes))
    print("nan: step 5 skipped by both ranks, equal weights after {} steps".format(STEPS_PER_EPOCH), flush=True)


def compare_after_kills(program, kind, kills, seed, is_control=False):
    arguments = [kind, *TWO_MICRO_BATCHES] if kind else []
    epochs = 3 + kills * STEPS_PER_KILL // STEPS_PER_EPOCH
    arguments.append("--epochs={}".format(epochs))
    with tempfile.TemporaryDirectory() as folder:
        straight = RankedRun(program, folder, run_file(arguments))
        straight.wait_end()
        expected = straight.logs()
    if any(weights is None or len(steps) != epochs * STEPS_PER_EPOCH for steps, weights, _ in expected):
        sys.exit("the unbroken run did not take its {} steps".format(epochs * STEPS_PER_EPOCH))
    with tempfile.TemporaryDirectory() as folder:
        control = ["--forget-part"] if is_control else []
        run = RankedRun(program, folder, run_file(arguments + control + ["--step-ms=20"]))
        done = run.kill_at_random(kills, random.Random(seed))
        run.wait_end()
        code, text = run.call("checkpoints", "verify")
        if code != 0:
            run.fail("a checkpoint does not verify: {}".format(text))
        for rank, (found, wanted) in enumerate(zip(run.logs(), expected)):
            if is_control and rank and found == wanted:
                run.fail("a resume without the part of rank {} went unnoticed".format(rank))
            if not is_control and found != wanted:
                differing = [step for step, line in wanted[0].items() if found[0].get(step) != line]
                run.fail("rank {} differs from step {} on; taken again: {}".format(rank, differing[:1], found[2][:5]))
        with open(run.journal, encoding="utf-8") as journal:
            if kills and "resum" not in journal.read():
                sys.exit("nothing was resumed")
    verdict = "differ from" if is_control else "are those of"
    print("{}: {} kills ({}), {} steps on each rank {} the unbroken run".format(
        kind or "replicated", kills, ", ".join("{} {}".format(count, role) for role, count in done.items()),
        len(expected[0][0]), verdict), flush=True)


def expect_cause(program, fault, texts):
    """The journal of a run whose last rank fails at step 5 contains the texts, and no closed connection as its cause."""
    with tempfile.TemporaryDirectory() as folder:
        run = RankedRun(program, folder, run_file(["--fail={}@5".format(fault)], restarts=1))
        run.process.wait(600)
        with open(run.journal, encoding="utf-8", errors="replace") as journal:
            text = journal.read()
        missing = [wanted for wanted in texts if wanted not in text]
        if missing or "cause: collective" in text:
            run.fail("the journal lacks {}".format(missing))
    print("{}: {}".format(fault, "; ".join(texts)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--program", default=PROGRAM)
    given = parser.parse_args()
    program = os.path.abspath(given.program)
    expect_cause(program, "oom", ["cause: out of device memory", "rank 1 of 2: OutOfMemoryError"])
    expect_cause(program, "raise", ["rank 1 of 2: ValueError: sample 17 has no label"])
    expect_skip(program)
    # The second role that the seed 7 draws is a rank; a kill of the keeper restarts nothing.
    compare_after_kills(program, "", 2, 7, is_control=True)
    for kind in ("", "--sharded"):
        compare_after_kills(program, kind, given.kills, given.seed)


if __name__ == "__main__":
    main()

"""A run of 2 ranks that goes on with 1 and then with 3, under the real program and torchrun: it reads the same samples in the
same steps. Weights that are spread over the ranks refuse another number of them, and say why. Ranks with different versions
are named.

Run by the interpreter whose PyTorch the script uses: `python python/tests/end_to_end_worlds.py [--program DOWNSHIFT]`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time

from end_to_end_loop import HERE, LIMIT, Run
from program import PROGRAM

SCRIPT = os.path.join(HERE, "ranked_loop.py")
STEP_SAMPLES = 12
COUNT = 8 * STEP_SAMPLES

# As many samples in a step on every rung.
RUN_FILE = """\
name: worlds
task: command
command: [{python}, {script}, "{{run_dir}}/steps.log", "--batch-size={{training.micro_batch}}",
          "--accumulation={{training.accumulation}}", --count={count}, {arguments}]
ranks: 2
environment: {{ OMP_NUM_THREADS: 1 }}
training: {{ micro_batch: 2, accumulation: 3 }}
knobs: {{ seed: 5 }}
watch: {{ autopilot: false, spike: {{ sigma: 0 }} }}
ladder:
  - {{ name: alone, set: {{ ranks: 1, training.accumulation: 6 }} }}
  - {{ name: three, set: {{ ranks: 3, training.accumulation: 2 }} }}
"""


def run_file(*arguments):
    return RUN_FILE.format(python=sys.executable, script=SCRIPT, count=COUNT, arguments=", ".join(arguments))


class WorldRun(Run):
    def log(self, rank=0):
        return os.path.join(self.run_dir() or self.folder, "steps.log.{}".format(rank))

    def steps(self):
        """Returns the samples of each step, over all ranks, and the ranks that took it."""
        samples, takers = {}, {}
        for rank in range(3):
            if not os.path.exists(self.log(rank)):
                continue
            with open(self.log(rank), encoding="utf-8") as file:
                for line in map(json.loads, file):
                    if "step" in line:
                        samples.setdefault(line["step"], []).extend(line["ids"])
                        takers.setdefault(line["step"], []).append(rank)
        return samples, takers

    def shift_to(self, rung):
        """Shifts, and waits for steps on the rung."""
        code, text = self.call("shift", rung)
        if code != 0:
            self.fail("the shift to {} was refused: {}".format(rung, text))

    def wait_journal(self, *texts):
        until = time.monotonic() + LIMIT
        while True:
            with open(self.journal, encoding="utf-8", errors="replace") as journal:
                found = journal.read()
            if all(text in found for text in texts):
                return found
            if time.monotonic() > until or self.process.poll() is not None:
                self.fail("the journal lacks {}".format([text for text in texts if text not in found]))
            time.sleep(0.1)


def expect_same_samples(program):
    with tempfile.TemporaryDirectory() as folder:
        straight = WorldRun(program, folder, run_file("--epochs=3"))
        straight.wait_end()
        expected, _ = straight.steps()
    with tempfile.TemporaryDirectory() as folder:
        run = WorldRun(program, folder, run_file("--epochs=3", "--step-ms=300"))
        for rung in ("alone", "three"):
            if not run.wait_lines(run.count_lines() + 4):
                run.fail("the run was over before the shift to {}".format(rung))
            run.shift_to(rung)
        run.wait_end()
        found, takers = run.steps()
        worlds = [len(takers[step]) for step in sorted(takers)]
        if sorted(set(worlds)) != [1, 2, 3] or [worlds[0], worlds[-1]] != [2, 3]:
            run.fail("the steps were taken by {} ranks".format(worlds))
        if {step: sorted(ids) for step, ids in found.items()} != {step: sorted(ids) for step, ids in expected.items()}:
            run.fail("other samples: {} instead of {}".format(found, expected))
        if sorted(sum(found.values(), [])) != sorted(list(range(COUNT)) * 3):
            run.fail("a sample was not read once in each epoch")
    print("2, 1 and 3 ranks took the same samples in each of {} steps ({})".format(len(found), worlds), flush=True)


def expect_refusal(program):
    with tempfile.TemporaryDirectory() as folder:
        run = WorldRun(program, folder, run_file("--sharded", "--epochs=2", "--step-ms=100"))
        if not run.wait_lines(4):
            run.fail("the run ended")
        code, text = run.call("shift", "alone")
        if code == 0 or "the weights are spread over 2 ranks and resume on as many only" not in text:
            run.fail("the shift was not refused: {} {}".format(code, text))
        run.wait_end()
    print("sharded weights stay on 2 ranks: {}".format(text.strip()), flush=True)


def expect_versions(program):
    with tempfile.TemporaryDirectory() as folder:
        run = WorldRun(program, folder, run_file("--epochs=1", "--other-torch=1.13.1"))
        run.wait_journal("rank 1 of 2 has torch 1.13.1", "start all ranks with the same environment")
        run.wait_end()
    print("rank 1 of 2 has torch 1.13.1", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=PROGRAM)
    program = os.path.abspath(parser.parse_args().program)
    expect_versions(program)
    expect_same_samples(program)
    expect_refusal(program)


if __name__ == "__main__":
    main()

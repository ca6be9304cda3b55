"""Ranks that hang under torchrun and the real program: the journal names the rank that left first, with what it does and the
state of its process, within the limit of a hang; one that fails is named within a second. Two ranks whose network is cut are
not named: all of them wait. A long save, evaluation or computation of one rank raises no alarm. Times are printed, and held against the limits with --full: a small machine that does
something else may be late.

Run by the interpreter whose PyTorch the script uses: `python python/tests/end_to_end_hangs.py [--full] [--program DOWNSHIFT]`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

# This script's folder is on the path; importing the other one adds the companion's.
from end_to_end_loop import HERE
from end_to_end_ranks import SCRIPT, RankedRun, run_file
from program import PROGRAM

# `watch.hang_min`, and the second beyond it that a hang may take to be noticed.
LIMIT_SECONDS = 10.0 + 1.0
# A file system may stall for a minute.
DATA_LIMIT_SECONDS = 60.0 + 1.0
DEATH_SECONDS = 1.0
# A step is learned from the 22nd on.
AT = 40
QUIET_SECONDS = 60.0

STOPPED, ASLEEP = r"stopped by a signal \(T\)", "asleep"
HANGS = {"stop": ("computing", STOPPED), "sleep": ("computing", ASLEEP), "lock": ("computing", ASLEEP), "data": ("waiting for data", ASLEEP)}
DEATHS = {"raise": "ValueError: sample 17 has no label", "oom": "OutOfMemoryError"}
QUIET = ("save", "evaluate", "compute")
PARTED = r"hang: no progress .*: all ranks wait in the gradient sync of step {}: no rank left it, the network may".format(AT)


class Case:
    def __init__(self, kind, rank, world=2, sharded=False):
        self.kind, self.rank, self.world, self.sharded = kind, rank, world, sharded

    def __str__(self):
        return "{} of rank {} of {}{}".format(self.kind, self.rank, self.world, ", sharded" if self.sharded else "")

    def run_file(self):
        seconds = QUIET_SECONDS if self.kind in QUIET else 3600.0
        arguments = ["--fail={}@{}".format(self.kind, AT), "--fail-rank={}".format(self.rank), "--fail-seconds={}".format(seconds)]
        # Steps of the same size on all ranks: 23 in an epoch.
        arguments += ["--epochs=4", "--count={}".format(92 * self.world), "--step-ms=20"] + (["--sharded"] if self.sharded else [])
        if self.kind == "partition":
            return networks_file(arguments)
        text = run_file(arguments, restarts=1, world=self.world)
        if self.kind == "save":
            text += "checkpoint: {{ every: {} steps }}\n".format(AT)
        return text


def networks_file(arguments):
    """Returns the run file of two ranks in two networks."""
    text = run_file(arguments, restarts=1)
    words = own_network() + [sys.executable, os.path.join(HERE, "two_networks.py"), SCRIPT]
    command = "command: [{}, \"{{run_dir}}/steps.log\", {}]".format(", ".join(words), ", ".join(arguments))
    return re.sub(r"(?m)^command: .*$", lambda _: command, text)


def own_network():
    return ["unshare", "--net"] + (["--map-root-user"] if os.geteuid() else [])


def why_no_networks():
    """Returns why two networks cannot be made here; none if they can."""
    cable = ["ip", "link", "add", "left", "type", "veth", "peer", "name", "right"]
    try:
        tried = subprocess.run(own_network() + cable, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip() or "unshare failed"


def cases(full):
    if not full:
        return [Case("stop", 1), Case("sleep", 1), Case("raise", 1), Case("evaluate", 0), Case("partition", 1)]
    found = [Case(kind, rank) for kind in HANGS for rank in (0, 1)]
    found += [Case(kind, rank) for kind in DEATHS for rank in (0, 1)]
    found += [Case("stop", 2, 3), Case("sleep", 1, 3), Case("stop", 1, sharded=True), Case("sleep", 0, sharded=True)]
    found += [Case("save", 1), Case("evaluate", 0), Case("evaluate", 1), Case("compute", 1)]
    found += [Case("partition", 0), Case("partition", 1)]
    return found


def try_case(program, case, is_timed):
    """Returns the time from the fault to the line that names it; none for a case that must raise no alarm."""
    with tempfile.TemporaryDirectory() as folder:
        run = RankedRun(program, folder, case.run_file())
        try:
            if case.kind in QUIET:
                expect_quiet(run)
                return None
            return expect_name(run, case, is_timed)
        finally:
            run.call("stop")
            run.process.wait(120)


def expect_name(run, case, is_timed):
    if case.kind == "partition":
        wanted = PARTED
    elif case.kind in HANGS:
        place, state = HANGS[case.kind]
        wanted = r"hang: no progress .*: rank {} of {} left first: {} in step {}, {}".format(case.rank, case.world, place, AT, state)
    else:
        wanted = r"rank {} of {}: {}".format(case.rank, case.world, DEATHS[case.kind])
    until = time.monotonic() + 240
    while True:
        text = journal_of(run)
        match = re.search(wanted, text)
        if match:
            break
        if time.monotonic() > until or "hang:" in text or run.process.poll() is not None:
            run.fail("{}: the journal lacks `{}`".format(case, wanted))
        time.sleep(0.02)
    took = time.time() - struck_at(run)
    limit = DEATH_SECONDS if case.kind in DEATHS else DATA_LIMIT_SECONDS if case.kind == "data" else LIMIT_SECONDS
    if is_timed and took > limit:
        run.fail("{}: named after {:.1f} s, limit {} s".format(case, took, limit))
    return took


def expect_quiet(run):
    run.wait_end()
    text = journal_of(run)
    struck_at(run)
    if "hang:" in text or "left first" in text or "cause:" in text:
        run.fail("an alarm about ranks that were well")


def journal_of(run):
    with open(run.journal, encoding="utf-8", errors="replace") as journal:
        return journal.read()


def struck_at(run):
    with open(os.path.join(run.run_dir(), "steps.log.fault"), encoding="utf-8") as file:
        return float(file.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all 22 cases")
    parser.add_argument("--program", default=PROGRAM)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the cases, from 1")
    given = parser.parse_args()
    for number, case in enumerate(cases(given.full), 1):
        if given.only is None or number in given.only:
            why = why_no_networks() if case.kind == "partition" else None
            if why:
                print("{:2} {}: not tested, {}".format(number, case, why), flush=True)
                continue
            took = try_case(os.path.abspath(given.program), case, given.full)
            outcome = "no alarm" if took is None else "named after {:.1f} s".format(took)
            print("{:2} {}: {}".format(number, case, outcome), flush=True)


if __name__ == "__main__":
    sys.exit(main())

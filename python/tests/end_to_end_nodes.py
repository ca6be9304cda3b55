"""Two ranks on two nodes of a real Slurm: a rank on the second node, its helper, and the harness are killed, and the run is
restarted on request. Losses, sample ids, draws and final weights of each rank are those of an unbroken run on one machine. A rank
that hangs on the second node is named, with its stack.

Run by the interpreter whose PyTorch the script uses: `python python/tests/end_to_end_nodes.py [--program DOWNSHIFT]`. Takes
about three minutes. The Slurm is that of `scripts/slurm-lib`: in a scratch folder, with a second node in namespaces of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

# This script's folder is on the path; importing the other one adds the companion's.
from end_to_end_loop import HERE, STEPS_PER_EPOCH
from end_to_end_ranks import SCRIPT, RankedRun, command_of, run_file, variable
from program import PROGRAM

LIB = os.path.join(HERE, "../../scripts/slurm-lib")
START = 'set -euo pipefail; . "$0"; has_second || fail "namespaces are not permitted"; start_slurm linuxproc 2; "$@"'
EPOCHS = 24
LIMIT = 60.0

RUN_FILE = """\
name: nodes
task: command
command: [{python}, {script}, "{{run_dir}}/steps.log", --epochs={epochs}, --step-ms=20{more}]
ranks: 2
environment: {{ OMP_NUM_THREADS: 1, GLOO_SOCKET_IFNAME: lo }}
knobs: {{ seed: 5 }}
watch:
  autopilot: {autopilot}
  restarts_without_progress: 1000
  restarts_in_window: 100000
  spike: {{ sigma: 0 }}
"""


class Job(RankedRun):
    """A run in a job of two nodes."""

    def __init__(self, program, folder, more="", autopilot="false"):
        text = RUN_FILE.format(python=sys.executable, script=SCRIPT, epochs=EPOCHS, more=more, autopilot=autopilot)
        self.program, self.folder = program, folder
        self.environment = dict(os.environ, DOWNSHIFT_RUNS_DIR=os.path.join(folder, "runs"), XDG_RUNTIME_DIR=folder)
        for name in ("STATE", "CACHE", "CONFIG"):
            self.environment["XDG_{}_HOME".format(name)] = os.path.join(folder, name.lower())
        for name in ("PYTHONPATH", "DOWNSHIFT_COMPANION", "DOWNSHIFT_CONFIG"):
            self.environment.pop(name, None)
        with open(os.path.join(folder, "run.yaml"), "w", encoding="utf-8") as file:
            file.write(text)
        self.journal = os.path.join(folder, "submitted")
        code, said = self.call("sbatch", "run.yaml", "--nodes=2", "--trust", "--submit", "--device=cpu")
        with open(self.journal, "w", encoding="utf-8") as file:
            file.write(said)
        if code != 0:
            self.fail("the job was not submitted")
        self.id = said.split()[-1]
        self.journal = os.path.join(folder, "runs", "nodes-{}.log".format(self.id))

    def state(self):
        told = subprocess.run(["scontrol", "show", "job", self.id], stdout=subprocess.PIPE).stdout.decode()
        return next((word.partition("=")[2] for word in told.split() if word.startswith("JobState=")), "")

    def wait_until(self, what, reached, seconds=LIMIT):
        until = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > until:
                self.fail("waited in vain: {}".format(what))
            time.sleep(0.05)

    def wait_more(self, lines):
        wanted = self.count_lines() + lines
        self.wait_until("{} more steps".format(lines), lambda: self.count_lines() >= wanted)

    def pid_of_rank(self, rank):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return next(pid for pid in found if SCRIPT.encode() in command_of(pid) and variable(pid, b"RANK") == str(rank).encode())

    def helper(self):
        """Returns the helper on the second node; srun has its words among its own, too."""
        found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return next(pid for pid in found if command_of(pid)[1:2] == [b"node-command"])

    def nodes_of_ranks(self):
        code, text = self.call("status", "--format=json")
        return [row.get("node") for row in json.loads(text).get("ranks", [])] if code == 0 else text

    def says(self, text):
        with open(self.journal, encoding="utf-8", errors="replace") as journal:
            return text in journal.read()


def disturb(job):
    """Kills and restarts, with a durable checkpoint before each."""
    second = subprocess.run(["sinfo", "-h", "-o", "%n"], stdout=subprocess.PIPE).stdout.decode().split()[-1]
    job.wait_until("the first steps", lambda: job.count_lines() >= 20)
    for what, pid in [("rank 1", lambda: job.pid_of_rank(1)), ("helper", job.helper), ("harness", lambda: job.pid_of("harness"))]:
        job.call("checkpoint")
        job.wait_more(12)
        os.kill(pid(), signal.SIGKILL)
        print("killed the {} ({} lines)".format(what, job.count_lines()), flush=True)
        job.wait_more(20)
    if not job.says("rank 1 of 2 on {} ended first: killed by SIGKILL".format(second)):
        job.fail("the journal does not name the rank and its node")
    if not job.says("collective: node {} is lost: its job step has ended".format(second)):
        job.fail("the lost node is not the cause")
    if job.says("rank 0 of 2 on {} ended first".format(socket.gethostname())):
        job.fail("the journal blames rank 0 for the lost node")
    job.wait_until("both nodes in the status", lambda: job.nodes_of_ranks() == [None, 1], 10)
    code, text = job.call("restart")
    if code != 0:
        job.fail("no restart: {}".format(text))
    job.wait_more(20)


def compare(program):
    with tempfile.TemporaryDirectory() as folder:
        straight = RankedRun(program, folder, run_file(["--epochs={}".format(EPOCHS)]))
        straight.wait_end()
        expected = straight.logs()
    if any(weights is None or len(steps) != EPOCHS * STEPS_PER_EPOCH for steps, weights, _ in expected):
        sys.exit("the unbroken run did not take its {} steps".format(EPOCHS * STEPS_PER_EPOCH))
    with tempfile.TemporaryDirectory() as folder:
        job = Job(program, folder)
        disturb(job)
        job.wait_until("the end of the job", lambda: job.state() in ("COMPLETED", "FAILED", "CANCELLED"), 300)
        if job.state() != "COMPLETED":
            job.fail("the job ended as {}".format(job.state()))
        code, text = job.call("checkpoints", "verify")
        if code != 0:
            job.fail("a checkpoint does not verify: {}".format(text))
        for rank, (found, wanted) in enumerate(zip(job.logs(), expected)):
            if found != wanted:
                differing = [step for step, line in wanted[0].items() if found[0].get(step) != line]
                job.fail("rank {} differs from step {} on; taken again: {}".format(rank, differing[:1], found[2][:5]))
    print("two nodes: {} steps on each rank are those of the unbroken run".format(len(expected[0][0])), flush=True)


def expect_hang(program):
    """A rank of the second node that waits for ever is named; its stack and its flight recorder come from there."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(program, folder, more=", --fail=lock@60", autopilot="true")
        job.wait_until("the first steps", lambda: job.count_lines() >= 20)
        for text in ("rank 1 of 2 left first: computing in step 60", "not begun by rank 1", "are in attempts/1/stacks-1-", "attempt 2"):
            job.wait_until(text, lambda text=text: job.says(text))
        job.call("stop")
        job.wait_until("the end of the job", lambda: job.state() == "FAILED")
    print("hang: rank 1 named, with the stack that its node wrote", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=PROGRAM)
    parser.add_argument("--has-slurm", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    program = os.path.abspath(given.program)
    if not given.has_slurm:
        own = [sys.executable, os.path.abspath(__file__), "--program", program, "--has-slurm"]
        sys.exit(subprocess.run(["bash", "-c", START, LIB, *own]).returncode)
    compare(program)
    expect_hang(program)


if __name__ == "__main__":
    main()

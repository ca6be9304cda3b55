"""`downshift trial` on real PyTorch scripts: one that resumes right, and four that leave out a part of their state.

Run by the interpreter whose PyTorch the scripts use: `python python/tests/end_to_end_trial.py [DOWNSHIFT]`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.abspath(os.path.join(HERE, "../../target/debug/downshift"))
SCRIPT = os.path.join(HERE, "scripts", "torch_own_resume.py")

RUN_FILE = """\
name: broken
task: command
command: [{python}, {script}, "--batch-size={{training.micro_batch}}", "--out={{run_dir}}/out", "--forget={forget}"]
training: {{ micro_batch: 8 }}
checkpoints: {{ match: "{{run_dir}}/out/checkpoint-*", complete: state.pt }}
resume: {{ arguments: ["--resume={{checkpoint}}"] }}
"""


def run_trial(folder, forget):
    """Returns the exit code, the output and the stored outcomes."""
    with open(os.path.join(folder, "run.yaml"), "w", encoding="utf-8") as file:
        file.write(RUN_FILE.format(python=sys.executable, script=SCRIPT, forget=forget))
    environment = dict(os.environ, DOWNSHIFT_RUNS_DIR=os.path.join(folder, "runs"))
    for name in ("STATE", "CACHE", "CONFIG"):
        environment["XDG_{}_HOME".format(name)] = os.path.join(folder, name.lower())
    environment["XDG_RUNTIME_DIR"] = folder
    environment.pop("PYTHONPATH", None)
    command = [PROGRAM, "trial", "run.yaml", "--device", "cpu", "--trust", "--for", "10m"]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    proven = os.path.join(folder, "state", "downshift", "proven")
    outcomes = []
    for name in os.listdir(proven) if os.path.isdir(proven) else []:
        with open(os.path.join(proven, name), encoding="utf-8") as file:
            outcomes.append(json.load(file)["outcome"])
    return done.returncode, done.stdout.decode(), outcomes


class Trials(unittest.TestCase):
    """A trial names what a script leaves out."""

    def check(self, forget, code, outcome, *parts):
        with tempfile.TemporaryDirectory() as folder:
            ended, said, outcomes = run_trial(folder, forget)
        for part in parts:
            self.assertIn(part, said)
        self.assertEqual((ended, outcomes), (code, [outcome]), said)

    def test_a_right_one(self):
        self.check("", 0, "exact", "exact: the resumed training equals the unbroken one", "✓ batch size obeyed")

    def test_forgets_the_order_of_the_data(self):
        self.check("order", 1, "differs", "probably missing: the order of the data")

    def test_forgets_the_scheduler(self):
        self.check("scheduler", 1, "differs", "probably missing: the scheduler")

    def test_forgets_the_random_state(self):
        self.check("random", 1, "differs", "probably missing: the random state")

    def test_ignores_its_batch_size(self):
        self.check("batch", 1, "exact", "the script ignores training.micro_batch")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)

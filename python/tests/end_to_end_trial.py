"""`downshift trial` on real PyTorch scripts: trainings that resume right, and four that leave out a part of their state.

Run by the interpreter whose PyTorch the scripts use: `python python/tests/end_to_end_trial.py [DOWNSHIFT]`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest

from program import PROGRAM

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "scripts")

COMMAND = """\
name: {name}
task: command
command: [{python}, {script}, {arguments}]
training: {{ micro_batch: 8 }}
"""
OWN_RESUME = """\
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state.pt }
resume: { arguments: ["--resume={checkpoint}"] }
"""


def run_trial(folder, script, arguments, rest):
    """Returns the exit code, the output and the stored outcomes."""
    path, quoted = os.path.join(SCRIPTS, script), ", ".join(json.dumps(argument) for argument in arguments)
    with open(os.path.join(folder, "run.yaml"), "w", encoding="utf-8") as file:
        file.write(COMMAND.format(name=script[:-3], python=sys.executable, script=path, arguments=quoted) + rest)
    environment = dict(os.environ, DOWNSHIFT_RUNS_DIR=os.path.join(folder, "runs"))
    for name in ("STATE", "CACHE", "CONFIG"):
        environment["XDG_{}_HOME".format(name)] = os.path.join(folder, name.lower())
    environment["XDG_RUNTIME_DIR"] = folder
    environment.pop("PYTHONPATH", None)
    command = [PROGRAM, "trial", "run.yaml", "--device", "cpu", "--trust", "--in-place", "--for", "10m"]
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

    def check(self, script, arguments, rest, expected):
        code, outcome, parts = expected
        with tempfile.TemporaryDirectory() as folder:
            ended, said, outcomes = run_trial(folder, script, arguments, rest)
        for part in parts:
            self.assertIn(part, said)
        self.assertEqual((ended, outcomes), (code, [outcome]), said)

    def check_own(self, forget, code, outcome, *parts):
        arguments = ["--batch-size={training.micro_batch}", "--out={run_dir}/out", "--forget=" + forget]
        self.check("torch_own_resume.py", arguments, OWN_RESUME, (code, outcome, parts))

    def test_a_loop_that_its_companion_resumes(self):
        parts = ("✓ order of the data", "✓ random state", "exact: the resumed training", "✓ batch size obeyed")
        self.check("attach_train.py", ["--batch-size={training.micro_batch}"], "", (0, "exact", parts))

    def test_a_hugging_face_training_that_its_companion_resumes(self):
        arguments = ["--batch={training.micro_batch}", "--out={run_dir}/out", "--epochs=20", "--log=1", "--aug=torch,numpy"]
        parts = ("✓ order of the data", "exact: the resumed training", "✓ batch size obeyed")
        self.check("hf_train.py", arguments, "", (0, "exact", parts))

    def test_a_right_one(self):
        self.check_own("", 0, "exact", "exact: the resumed training equals the unbroken one", "✓ batch size obeyed")

    def test_forgets_the_order_of_the_data(self):
        self.check_own("order", 1, "differs", "probably missing: the order of the data")

    def test_forgets_the_scheduler(self):
        self.check_own("scheduler", 1, "differs", "probably missing: the scheduler")

    def test_forgets_the_random_state(self):
        self.check_own("random", 1, "differs", "probably missing: the random state")

    def test_ignores_its_batch_size(self):
        self.check_own("batch", 1, "exact", "the script ignores training.micro_batch")


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]):
        PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)

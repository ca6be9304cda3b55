"""Plain torch loops through the program itself: updates that a loss scaler leaves out, and rates that are set by hand.

Run by the interpreter whose PyTorch the scripts use: `python python/tests/end_to_end_numerics.py`. The program is
`target/debug/downshift`, or the one that DOWNSHIFT_PROGRAM names.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from program import PROGRAM

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_SECONDS = 400
RUN_FILE = """\
name: numerics
task: command
command: [{python}, {script}, '--lr={{optimizer.lr}}', {arguments}]
restart: from_start
checkpoints: {{ match: 'ckpt_*.pt' }}
resume: {{ arguments: ['--resume={{checkpoint}}'] }}
optimizer: {{ lr: 0.1 }}
ladder:
  - {{ name: lower, relieves: [numerics], set: {{ optimizer.lr: 0.01 }} }}
"""


class Numerics(unittest.TestCase):
    def run_script(self, script, *arguments):
        """Runs a script through the program; returns its status and what the program printed."""
        folder = tempfile.TemporaryDirectory(prefix="dsn-")
        self.addCleanup(folder.cleanup)
        values = {
            "python": sys.executable, "script": os.path.join(HERE, "scripts", script),
            "arguments": ", ".join(json.dumps(argument) for argument in arguments),
        }  # fmt: skip
        with open(os.path.join(folder.name, "run.yaml"), "w", encoding="utf-8") as file:
            file.write(RUN_FILE.format(**values))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment.update(
            DOWNSHIFT_RUNS_DIR=os.path.join(folder.name, "runs"), XDG_RUNTIME_DIR=folder.name, OMP_NUM_THREADS="1",
            HOME=folder.name,
        )  # fmt: skip
        for name in ("STATE", "CACHE", "CONFIG"):
            environment["XDG_{}_HOME".format(name)] = os.path.join(folder.name, name.lower())

        def call(*words):
            command = [PROGRAM, *words]
            done = subprocess.run(
                command, cwd=folder.name, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS,
            )  # fmt: skip
            return done.stdout

        said = call("run", "run.yaml", "--headless", "--trust", "--device", "cpu")
        return json.loads(call("status", "--format", "json")), said

    def test_what_a_scaler_leaves_out_is_counted_and_too_much_of_it_shifts(self):
        # Printed steps are rows; the companion counts the updates between them.
        for arguments in (("--print",), ()):
            status, said = self.run_script("torch_scaler.py", "--steps=400", "--rate=100", "--calm-below=0.05", "--save", *arguments)
            self.assertEqual((status["state"], status["rung_name"]), ("finished", "lower"), said[-3000:])
            self.assertIn("updates were skipped, since a value was not finite", said)
            self.assertGreater(status["skipped"], 16, said[-3000:])

    def test_a_loop_that_leaves_out_nothing_is_known_to_or_unknown(self):
        status, said = self.run_script("torch_scaler.py", "--steps=60", "--calm-below=1", "--print")
        self.assertEqual((status["state"], status["skipped"]), ("finished", 0), said[-3000:])
        status, said = self.run_script("torch_by_hand.py", "--steps=60")
        self.assertEqual((status["state"], status["skipped"]), ("finished", None), said[-3000:])

    def test_a_rate_that_is_set_by_hand_does_not_block_the_rescue(self):
        status, said = self.run_script("torch_by_hand.py", "--steps=120", "--warmup=30", "--rate=100", "--nan")
        self.assertNotIn("ignores", said)
        self.assertEqual((status["state"], status["rung_name"]), ("finished", "lower"), said[-3000:])


if __name__ == "__main__":
    unittest.main()

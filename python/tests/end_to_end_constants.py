"""Scripts with their settings as constants: `init` proposes a ladder of them, and the companion sets what a rung changes.

Run by the interpreter whose PyTorch the scripts use: `python python/tests/end_to_end_constants.py`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from end_to_end_frameworks import HERE, Run
from program import PROGRAM


class Constants(unittest.TestCase):
    def start(self, script, more="", edit=None):
        """Starts the run file that `init` proposes for a copy of a script, with more at its end."""
        folder = tempfile.mkdtemp(prefix="dsc-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, script)
        with open(os.path.join(HERE, "scripts", "constants", script), encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(edit(text) if edit else text)
        words = [PROGRAM, "init", "--", sys.executable, script]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(folder, script.replace(".py", ".yaml")), encoding="utf-8") as file:
            proposed = file.read()
        run = Run.of_file(re.sub(r"directory: \.", "directory: " + folder, proposed) + more)
        self.addCleanup(run.close)
        return run

    def shift(self, run, rung, wanted):
        """Shifts, and waits until the knobs in force are those."""
        attempts = run.status()["attempts"]
        code, said = run.call("shift", rung)
        self.assertEqual(code, 0, said)

        def is_in_force():
            status = run.status()
            found = (status.get("companion") or {}).get("knobs", {})
            return status.get("attempts", 0) > attempts and all(found.get(name) == value for name, value in wanted.items())

        run.wait(is_in_force, "{} on {}: {}".format(wanted, rung, run.status()))
        status = run.status()
        self.assertEqual(status["companion"]["ignored"], [])
        return status["step"]

    def check_down_and_up(self, script, steps, full, lower):
        """The values of a rung are a micro-batch and an accumulation."""
        names = ("training.micro_batch", "training.accumulation")
        run = self.start(script)
        run.wait_for_step(10)
        self.shift(run, "accumulate", dict(zip(names, lower)))
        run.wait_for_step(run.status()["step"] + 5)
        self.shift(run, "full", dict(zip(names, full)))
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        self.assertEqual(run.status()["step"], steps, run.said()[-3000:])
        said = run.said()
        for field, before, after in zip(("per_device_train_batch_size", "gradient_accumulation_steps"), full, lower):
            self.assertIn("set {} = {} in the process; the script has {}".format(field, after, before), said)
        self.assertEqual(said.count("in the process"), 2, "nothing is set on full")
        for before, after in re.findall(r"loss ([\d.]+) → ([\d.]+)", said):
            self.assertLess(abs(float(before) - float(after)), 0.5, "the loss goes on")

    def test_a_lora_by_trl_keeps_its_effective_batch_down_and_up(self):
        # 64 lines in batches of 8.
        self.check_down_and_up("sft.py", 8 * 40, (4, 2), (2, 4))

    def test_the_trainer_keeps_its_effective_batch_down_and_up(self):
        self.check_down_and_up("trainer.py", 10 * 40, (8, 1), (4, 2))

    def test_the_trainer_takes_every_knob_of_a_rung(self):
        run = self.start("trainer.py")
        run.wait_for_step(10)
        wanted = {
            "training.micro_batch": 2, "training.accumulation": 4, "training.gradient_checkpointing": True,
            "optimizer.lr": 2.5e-4, "optimizer.max_norm": 0.5,
        }  # fmt: skip
        self.shift(run, "safe", wanted)
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        self.assertEqual(run.status()["step"], 10 * 40, run.said()[-3000:])

    def test_a_value_that_the_script_sets_later_is_reported(self):
        def edit(text):
            return text.replace("trainer = Trainer(", "settings.per_device_train_batch_size = 8\ntrainer = Trainer(")

        run = self.start("trainer.py", edit=edit)
        run.wait_for_step(10)
        code, said = run.call("shift", "accumulate")
        self.assertEqual(code, 0, said)
        run.wait(lambda: (run.status().get("companion") or {}).get("ignored"), "the report")
        (ignored,) = run.status()["companion"]["ignored"]
        self.assertEqual((ignored["name"], ignored["rung"], ignored["in_force"]), ("training.micro_batch", 4, 8))

    def test_lightning_takes_what_its_trainer_has(self):
        more = "  - { name: gentle, relieves: [numerics], set: { optimizer.max_norm: 0.25, training.accumulation: 1 } }\n"
        run = self.start("lightning_fit.py", more)
        run.wait_for_step(10)
        self.shift(run, "gentle", {"optimizer.max_norm": 0.25, "training.accumulation": 1})
        self.assertIn("set accumulate_grad_batches = 1 in the process; the script has 2", run.said())
        self.assertEqual(run.finish(), 0, run.said()[-3000:])

    def test_an_accelerator_takes_its_accumulation(self):
        more = "  - { name: less, relieves: [memory], set: { training.accumulation: 1 } }\n"
        run = self.start("accelerate_loop.py", more)
        run.wait_for_step(5)
        code, said = run.call("shift", "less")
        self.assertEqual(code, 0, said)
        run.wait(lambda: "set gradient_accumulation_steps = 1 in the process; the script has 2" in run.said(), "the note")


if __name__ == "__main__":
    unittest.main(verbosity=2)

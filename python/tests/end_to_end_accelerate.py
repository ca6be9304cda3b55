"""Loops around accelerate through the program itself: killed, shifted and paused at seeded moments, no update is lost or made twice,
and the final weights are those of a run that nothing disturbed.

Run by the interpreter whose PyTorch the scripts use: `python python/tests/end_to_end_accelerate.py [--kills N] [--seed N]`.
"""

import argparse
import csv
import io
import json
import os
import random
import signal
import sys
import unittest

from end_to_end_frameworks import HERE, Run

parser = argparse.ArgumentParser()
parser.add_argument("--kills", type=int, default=4, help="disturbances of each loop")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("names", nargs="*", help="of tests; all without any")
OPTIONS = parser.parse_args()

# A disturbance comes within eight steps of the one before.
STEPS = max(70, 12 * OPTIONS.kills)
# A keeper that dies once more within ten minutes stays dead.
KEEPER_RESTARTS = 5
RUN_FILE = """\
name: kept
task: command
command: [{python}, {script}, "--output_dir={{run_dir}}/out", {arguments}]
directory: {folder}
training: {{ micro_batch: 4, accumulation: 2, steps: {steps} }}
ladder:
  - {{ name: segments, relieves: [memory], set: {{ environment.PYTORCH_ALLOC_CONF: "expandable_segments:True" }} }}
checkpoint: {{ every: 5 steps }}
# The test kills it more often than the usual limits allow.
watch: {{ restarts_without_progress: 1000, restarts_in_window: 100000 }}
{rest}
"""
# How the script itself resumes, if the run file says so.
OWN = {
    "network.py": """\
checkpoints: { match: "{run_dir}/out/*-state", complete: random_states_0.pkl }
resume: { arguments: ["--resume={checkpoint}", --skip_until_initial_step], count: continues }
""",
    "diffusion.py": """\
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: random_states_0.pkl }
resume: { arguments: ["--resume_from_checkpoint={checkpoint}"] }
""",
    "tuner.py": """\
checkpoints: { match: "{run_dir}/out/*-state", complete: random_states_0.pkl }
resume: { arguments: ["--resume={checkpoint}"], count: restarts }
""",
}


class Accelerate(unittest.TestCase):
    def start(self, script, rest="", more=(), python=sys.executable):
        path = os.path.join(HERE, "scripts", "accelerate_loops", script)
        run = Run.of_file(
            RUN_FILE.format(
                python=python, script=path, folder=".", steps=STEPS, rest=rest,
                arguments=", ".join(json.dumps(argument) for argument in ("--pause=0.08", "--max_train_steps={}".format(STEPS), *more)),
            )
        )  # fmt: skip
        self.addCleanup(run.close)
        return run

    def updates(self, run):
        with open(os.path.join(run.folder, "updates"), encoding="utf-8") as file:
            return [int(line) for line in file]

    def losses(self, run):
        """Returns the losses of each step, whichever attempt took it."""
        code, rows = run.call("export", "--format", "csv")
        self.assertEqual(code, 0, rows)
        found = {}
        for row in csv.DictReader(io.StringIO(rows)):
            found.setdefault(int(row["step"]), set()).add(row["loss"])
        return found

    def disturb(self, run, draw, done):
        """Kills, shifts or pauses the run at a moment that is drawn; returns what it did."""
        step = run.status().get("step") or 0
        attempts = run.status().get("attempts") or 0
        run.wait_for_step(step + draw.randint(3, 8))
        what = draw.choice(["script", "harness", "keeper", "shift", "pause"])
        if what == "keeper" and done.count(what) == KEEPER_RESTARTS:
            what = "harness"
        if what == "shift":
            code, said = run.call("shift", "segments" if run.status()["rung"] == 0 else "full")
            self.assertEqual(code, 0, said)
        elif what == "pause":
            code, said = run.call("pause")
            self.assertEqual(code, 0, said)
            run.wait(lambda: run.status().get("state") == "paused", "the pause")
            self.assertEqual(run.call("resume")[0], 0)
        else:
            os.kill(run.process_of(what), signal.SIGKILL)
            if what == "keeper":
                return what
        run.wait(lambda: (run.status().get("attempts") or 0) > attempts, "the next attempt after " + what)
        return what

    def check(self, script, rest, *more):
        whole = self.start(script, rest, more)
        self.assertEqual(whole.finish(), 0, whole.said()[-3000:])
        self.assertEqual(self.updates(whole), list(range(1, STEPS + 1)))
        draw = random.Random("{} {}".format(OPTIONS.seed, script + rest))
        run = self.start(script, rest, more)
        run.wait_for_step(2)
        done = []
        for _ in range(OPTIONS.kills):
            if (run.status().get("step") or 0) > STEPS - 20:
                break
            done.append(self.disturb(run, draw, done))
        self.assertEqual(run.finish(), 0, "{}: {}".format(done, run.said()[-5000:]))
        status = run.status()
        self.assertEqual((status["step"], status["total_steps"]), (STEPS, STEPS), (done, run.said()[-5000:]))
        self.assertEqual(set(self.updates(run)), set(range(1, STEPS + 1)), done)
        self.assertEqual(self.updates(run)[-1], STEPS, done)
        self.assertEqual(run.weights(), whole.weights(), (done, run.said()[-5000:]))
        self.check_losses(run, whole, done)
        return whole, run

    def check_losses(self, run, whole, done):
        """Compares the losses. A harness that is killed takes the rows with it that it has not passed on."""
        found, wanted = self.losses(run), self.losses(whole)
        self.assertEqual(found, {step: wanted[step] for step in found}, done)
        missing = len(wanted) - len(found)
        self.assertLessEqual(missing, 4 * done.count("harness"), (done, sorted(set(wanted) - set(found))))

    def test_a_script_that_passes_over_its_batches_itself(self):
        self.check("network.py", OWN["network.py"], "--count=40")

    def test_a_data_set_that_shuffles_itself_goes_on_where_exact_is_said(self):
        own = OWN["network.py"].replace("--skip_until_initial_step", '--skip_until_initial_step, "--initial_step={step}"')
        more = ["--buckets", "--count=56"]
        whole = self.start("network.py", own, more)
        self.assertEqual(whole.finish(), 0, whole.said()[-3000:])
        run = self.start("network.py", own, more)
        # Seven steps in an epoch: these are within three of them.
        for attempt, step in enumerate((2, 10, 24), 2):
            run.wait_for_step(step)
            self.assertEqual(run.call("restart")[0], 0)
            run.wait(lambda: run.status().get("attempts") == attempt and run.status().get("companion"), "the restart")
            run.wait_for_step(step + 4)
            status = run.status()["companion"]
            self.assertEqual((status["grade"], status["ignored"]), ("exact", []), status)
        self.assertEqual(run.finish(), 0, run.said()[-5000:])
        self.assertEqual(run.status()["step"], STEPS)
        self.assertEqual(run.weights(), whole.weights())
        self.check_losses(run, whole, [])
        self.assertNotIn("helper in the script is gone", run.said())

    def test_a_script_that_passes_over_other_batches_is_not_called_exact(self):
        """An odd number of batches in an epoch: the script counts two for each update, and its last update has one."""
        run = self.start("network.py", OWN["network.py"], ["--count=42"])
        run.wait_for_step(8)
        self.assertEqual(run.call("restart")[0], 0)
        run.wait(lambda: (run.status().get("companion") or {}).get("grade") == "script", "the grade")
        self.assertIn("more batches than were used", run.status()["companion"]["reason"])

    def test_a_script_that_takes_its_step_from_the_name(self):
        self.check("diffusion.py", OWN["diffusion.py"])

    def test_a_script_that_passes_over_its_batches_one_by_one(self):
        self.check("diffusion.py", OWN["diffusion.py"], "--passes_over")

    def test_a_script_that_counts_from_0_again(self):
        self.check("tuner.py", OWN["tuner.py"])

    def test_a_script_that_is_not_told_of_its_state(self):
        self.check("tuner.py", "")

    def test_a_loop_that_evaluates_between_its_steps(self):
        whole, run = self.check("tuner.py", "", "--evaluate_every=4")
        for each in (whole, run):
            with open(os.path.join(each.folder, "evaluations"), encoding="utf-8") as file:
                self.assertEqual(set(file.read().split()), {"20"}, "every evaluation sees all samples")

    def test_a_resume_without_a_companion_is_seen_to_differ(self):
        """The negative control: without the position, the same script makes the same number of updates with other data."""
        rest = OWN["tuner.py"].replace('["--resume={checkpoint}"]', '["--resume={checkpoint}", "--max_train_steps={steps_left}"]')
        more, python = ["--save_every_n_steps=10"], sys.executable + ", -E"
        whole = self.start("tuner.py", rest, more, python)
        self.assertEqual(whole.finish(), 0, whole.said()[-3000:])
        run = self.start("tuner.py", rest, more, python)
        run.wait(lambda: (run.status().get("durable_step") or 0) >= 10, "a checkpoint")
        os.kill(run.process_of("script"), signal.SIGKILL)
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        self.assertEqual(run.status()["step"], STEPS, run.said()[-3000:])
        self.assertEqual(self.updates(run)[-1], STEPS)
        self.assertNotEqual(run.weights(), whole.weights())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + OPTIONS.names, verbosity=2)

"""Resumes of loops around accelerate, and what is said of them: with a data set that shuffles itself, and one of whole batches."""

from __future__ import annotations

import os
import tempfile
import unittest

from harness_double import HarnessDouble

STOP = {"order": "stop", "checkpoint": True}
STEPS = 30


class Resumes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="accelerate-resumes-")
        self.addCleanup(folder.cleanup)
        states = os.path.join(folder.name, "states", "step-*")
        self.harness = HarnessDouble(folder=folder.name, states=states, knobs={"training": {"micro_batch": 4, "accumulation": 1}})
        self.addCleanup(self.harness.close)

    def train(self, script, *arguments, **settings):
        """Runs a loop of ten batches in an epoch."""
        words = ["--gradient_accumulation_steps=1", "--max_train_steps={}".format(STEPS), "--count=40", "--pause=0.03", *arguments]
        run = self.harness.run(os.path.join("accelerate_loops", script), *words, **settings)
        self.assertIn(run.code, (0, 75, -9), run.output[-3000:])
        return run

    def resume(self, script, before, *arguments, **settings):
        point = before.resume()
        settings = {"resume": point, "length": STEPS, **settings}
        return self.train(script, *[word.format(**point) for word in arguments], **settings)

    def said(self, run):
        hello = run.hello()
        return hello["grade"], hello["reason"]

    def weights(self, run):
        self.assertIn("WEIGHTS", run.output)
        return run.output.split("WEIGHTS")[1].split()[0]

    def test_a_data_set_that_shuffles_anew_is_not_called_exact(self):
        own = ["--buckets", "--resume={path}", "--skip_until_initial_step"]
        whole = self.train("network.py", "--buckets")
        first = self.train("network.py", "--buckets", orders={12: STOP})
        second = self.resume("network.py", first, *own, orders={23: STOP}, counts_anew=True)
        self.assertEqual(self.said(second), ("exact", None))
        # The script has counted from the beginning of an epoch, and tells the data set that it is an earlier one.
        third = self.resume("network.py", second, *own, counts_anew=True)
        self.assertEqual(third.hello()["grade"], "script")
        self.assertIn("another batch", third.hello()["reason"])
        self.assertNotEqual(self.weights(third), self.weights(whole))
        told = self.resume("network.py", second, *own, "--initial_step={step}", counts_anew=True)
        self.assertEqual(self.said(told), ("exact", None))
        self.assertEqual(self.weights(told), self.weights(whole))

    def test_a_state_between_two_epochs_is_called_exact_where_the_next_batch_was_seen(self):
        saves = ["--save_every_n_steps=10"]
        whole = self.train("tuner.py")
        # Killed behind the state of step 10, the loop had begun the next epoch.
        killed = self.train("diffusion.py", *saves, "--output_dir=killed", kill_at=13)
        state = os.path.join(self.harness.folder, "killed", "checkpoint-10")
        point = {"kind": "script", "path": state, "step": 10, "samples": 40}
        resumed = self.train("diffusion.py", "--resume_from_checkpoint=checkpoint-10", "--output_dir=killed", resume=point, length=STEPS)
        self.assertEqual(self.said(resumed), ("exact", None))
        self.assertEqual(self.weights(resumed), self.weights(whole))
        self.assertEqual({step: killed.losses()[step] for step in (11, 12)}, {step: resumed.losses()[step] for step in (11, 12)})
        stopped = self.train("tuner.py", orders={9: STOP})
        stopped_at = stopped.resume()["step"]
        again = self.resume("tuner.py", stopped, "--resume={path}", counts_anew=True)
        self.assertEqual(self.weights(again), self.weights(whole))
        # The order comes between two steps, and may come a step later.
        self.assertEqual("between two passes" in (again.hello()["reason"] or ""), stopped_at == 10, (stopped_at, again.hello()))

    def test_the_batch_of_a_data_set_of_whole_batches_is_measured(self):
        run = self.train("network.py", "--buckets")
        hello = run.hello()
        self.assertEqual((hello["knobs"]["training.micro_batch"], hello["measured"]), (4, ["training.micro_batch"]))
        self.assertEqual(run.of("step")[-1]["samples"], STEPS * 4, "the run's clock counts samples")
        # The rung asks for other batches than the data set makes: one below its size may be a rest, a larger one is not.
        for wanted, in_force in ((8, None), (2, 4)):
            run = self.train("network.py", "--buckets", "--max_train_steps=3", knobs={"training": {"micro_batch": wanted}})
            self.assertEqual(run.hello()["knobs"]["training.micro_batch"], in_force)
        plain = self.train("network.py", "--train_batch_size=1", "--max_train_steps=3")
        self.assertEqual((plain.hello()["knobs"]["training.micro_batch"], plain.hello()["measured"]), (1, []))

    def test_a_process_that_ends_by_itself_says_so_and_a_killed_one_does_not(self):
        ended = self.train("tuner.py", "--max_train_steps=4")
        self.assertEqual([event["event"] for event in ended.events][-1], "left")
        self.assertEqual(self.train("tuner.py", kill_at=3).of("left"), [])
        failed = self.harness.run(os.path.join("accelerate_loops", "tuner.py"), "--max_train_steps=4", "--resume=/nowhere")
        self.assertEqual((failed.code, failed.of("left")), (1, []))


if __name__ == "__main__":
    unittest.main()

"""Lightning under the companion: events, orders, guard, and a resume equal bit by bit."""

import os
import shutil
import tempfile
import unittest

from harness_double import HarnessDouble

STOP = {"order": "stop", "checkpoint": True}


class Lightning(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hooks-pl-")
        self.addCleanup(folder.cleanup)
        self.harness = HarnessDouble(folder=folder.name)
        self.addCleanup(self.harness.close)

    def run_script(self, *arguments, **settings):
        return self.harness.run("lightning_train.py", *arguments, **settings)

    def save_at(self, step, *arguments, **settings):
        """Runs to the end and saves at multiples of `step`. Returns the run, and the resume from the first save."""
        run = self.run_script(*arguments, checkpoint={"every_steps": step, "every_seconds": None}, **settings)
        self.assertEqual(run.code, 0, run.output[-3000:])
        saved = run.of("wrote")[0]
        self.assertEqual(saved["step"], step)
        self.assertLessEqual(len(run.of("wrote")), 3, "the first one is no longer kept")
        return run, {"kind": "script", "path": saved["path"], "step": step, "samples": saved["samples"]}

    def assert_continues(self, whole, second, after):
        self.assertEqual(second.code, 0, second.output[-3000:])
        self.assertEqual(second.losses(), {step: loss for step, loss in whole.losses().items() if step > after})
        self.assertEqual(second.rates(), {step: rate for step, rate in whole.rates().items() if step > after})
        self.assertEqual(second.weights(), whole.weights())

    def test_resume_within_an_epoch_is_exact_with_loader_processes(self):
        arguments = ["--workers", "2", "--val"]
        whole = self.run_script(*arguments)
        self.assertEqual(whole.code, 0, whole.output[-3000:])
        first = self.run_script(*arguments, orders={12: STOP})
        self.assertEqual((first.code, first.of("ended")), (75, []), first.output[-3000:])
        stopped = first.one("stopping")
        self.assertTrue(stopped["saved"])
        second = self.run_script(*arguments, resume=first.resume())
        self.assert_continues(whole, second, stopped["step"])
        self.assertEqual({**first.losses(), **second.losses()}, whole.losses())
        self.assertEqual(second.hello()["grade"], "exact")
        hello = whole.hello()
        self.assertEqual((hello["framework"], hello["total_steps"], hello["total_units"]), ("lightning", 40, 320))
        self.assertEqual((hello["knobs"]["training.micro_batch"], hello["knobs"]["optimizer.lr"]), (8, 0.01))
        self.assertEqual((len(whole.of("eval")), whole.one("ended")["step"]), (4, 40))
        self.assertGreater(whole.of("eval")[0]["loss"], 0)
        self.assertEqual(second.hello()["resumed_from"], first.one("stopping")["step"])

    def test_a_lower_rate_is_in_force_after_a_resume(self):
        whole = self.run_script()
        first = self.run_script(orders={12: STOP})
        second = self.run_script("--lr", "0.005", resume=first.resume())
        self.assertEqual(second.code, 0, second.output[-3000:])
        self.assertEqual(min(second.rates()), first.resume()["step"] + 1)
        for step, rate in second.rates().items():
            self.assertAlmostEqual(rate, whole.rates()[step] / 2, delta=1e-12)
        self.assertEqual(second.hello()["knobs"]["optimizer.lr"], 0.005)
        self.assertIn("on: 0.005, as the script asks; the checkpoint had 0.01", second.of("note")[-1]["text"])

    def test_a_trial_leaves_the_folders_of_the_script_alone(self):
        own, run_dir = os.path.join(self.harness.folder, "own"), os.path.join(self.harness.folder, "run")
        os.makedirs(own)
        with open(os.path.join(own, "last.ckpt"), "w", encoding="utf-8") as file:
            file.write("mine")
        run = self.run_script("--epochs", "1", "--writes", own, trial=True, run_dir=run_dir)
        self.assertEqual(run.code, 0, run.output[-3000:])
        with open(os.path.join(own, "last.ckpt"), encoding="utf-8") as file:
            self.assertEqual((os.listdir(own), file.read()), (["last.ckpt"], "mine"))
        written = [name for _, _, names in os.walk(os.path.join(run_dir, "output")) for name in names]
        self.assertIn("last.ckpt", written)
        self.assertIn("metrics.csv", written)
        run = self.run_script("--epochs", "1", "--writes", own)
        self.assertGreater(len(os.listdir(own)), 1, "outside a trial it writes where it says")

    def test_a_stop_that_is_withdrawn_while_it_saves_does_not_end_the_training(self):
        run = self.run_script(orders={3: STOP}, before_answer=[{"order": "withdraw_stop"}])
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertEqual((len(run.of("wrote")), run.of("stopping"), run.of("stop_refused")), (1, [], []))

    def test_resume_between_epochs_is_exact(self):
        whole, resume = self.save_at(10, "--epochs", "3")
        second = self.run_script("--epochs", "3", resume=resume)
        self.assert_continues(whole, second, 10)

    def test_resume_with_accumulation_is_exact(self):
        arguments = ["--batch", "4", "--accum", "2", "--epochs", "2", "--package", "pytorch_lightning"]
        whole, resume = self.save_at(7, *arguments)
        second = self.run_script(*arguments, resume=resume)
        self.assert_continues(whole, second, 7)

    def test_a_script_without_shuffling_or_loader(self):
        whole, resume = self.save_at(50, "--boring", "--epochs", "2")
        second = self.run_script("--boring", "--epochs", "2", resume=resume)
        self.assert_continues(whole, second, 50)

    def test_another_micro_batch_reads_the_same_samples(self):
        plain = ["--dropout", "0", "--epochs", "3"]
        whole, resume = self.save_at(12, *plain)
        second = self.run_script(*plain, "--batch", "4", "--accum", "2", resume=resume)
        hello = second.hello()
        self.assertEqual((hello["grade"], hello["knobs"]["training.micro_batch"]), ("same_data", 4))
        self.assertEqual((min(second.losses()), max(second.losses())), (13, 30), second.output[-3000:])
        for step, loss in second.losses().items():
            self.assertAlmostEqual(loss, whole.losses()[step], delta=1e-5)

    def test_the_run_saves_where_the_script_does(self):
        own = os.path.join(self.harness.folder, "own")
        for more, steps in (([], [10, 20, 30]), (["--val"], [10, 20, 30]), (["--save-every", "7"], [7, 14, 21, 28])):
            arguments = ["--epochs", "3", "--writes", own, *more]
            whole = self.run_script(*arguments)
            self.assertEqual(whole.code, 0, whole.output[-3000:])
            saved = whole.of("wrote")
            self.assertEqual([event["step"] for event in saved], steps, more)
            kept = saved[-2]
            shutil.rmtree(own)
            resume = {"kind": "script", "path": kept["path"], "step": kept["step"], "samples": kept["samples"]}
            second = self.run_script(*arguments, resume=resume)
            self.assert_continues(whole, second, kept["step"])
            self.assertEqual(second.hello()["grade"], "exact")
            shutil.rmtree(own)

    def test_a_save_at_the_end_of_an_epoch_waits_for_the_validation(self):
        whole, resume = self.save_at(10, "--epochs", "3", "--val")
        kinds = [event["event"] for event in whole.events if event["event"] in ("eval", "wrote")]
        self.assertEqual(kinds, ["eval", "wrote"] * 3)
        second = self.run_script("--epochs", "3", "--val", resume=resume)
        self.assert_continues(whole, second, 10)
        self.assertEqual(len(second.of("eval")), 2)

    def test_epochs_of_one_step_are_saved_and_stopped_too(self):
        one = ["--epochs", "6", "--val", "--batch", "80"]
        whole = self.run_script(*one, checkpoint={"every_steps": 1, "every_seconds": None})
        self.assertGreaterEqual(len(whole.of("wrote")), 3, whole.output[-3000:])
        first = self.run_script(*one, orders={2: STOP})
        self.assertLessEqual(first.one("stopping")["step"], 4, first.output[-3000:])
        self.assert_continues(whole, self.run_script(*one, resume=first.resume()), first.one("stopping")["step"])

    def test_the_last_step_is_saved(self):
        run = self.run_script("--epochs", "2", "--val", checkpoint={"every_steps": 20, "every_seconds": None})
        self.assertEqual([event["step"] for event in run.of("wrote")], [20], run.output[-3000:])

    def test_a_nan_is_dropped_and_counted(self):
        run = self.run_script("--epochs", "1", inject=["nan@5"])
        skipped = run.one("skipped")
        self.assertEqual((skipped["step"], skipped["what"], skipped["applied"]), (5, "gradient", False))
        self.assertEqual((skipped["where"], skipped["parameter"]), ("layers.0.weight",) * 2)
        self.assertEqual(sorted(run.losses()), [1, 2, 3, 4, 6, 7, 8, 9, 10])
        unguarded = self.run_script("--epochs", "1", inject=["nan@5"], skip_non_finite=False)
        self.assertEqual(len(unguarded.of("skipped")), 6, "without the guard every later step is NaN")

    def test_sigterm_is_never_a_normal_end(self):
        run = self.run_script("--epochs", "4000", term_at=5)
        self.assertEqual(run.of("ended"), [])
        self.assertLess(max(run.losses()), run.hello()["total_steps"])

    def test_a_stop_that_cannot_be_published_is_refused(self):
        run = self.run_script(orders={3: STOP}, publish=False)
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertEqual(run.one("stop_refused")["message"], "the disk is full")
        self.assertEqual(run.one("ended")["step"], 40)


if __name__ == "__main__":
    unittest.main()

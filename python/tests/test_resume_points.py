"""A training that is resumed once, twice or three times reads each sample once, and ends with the same weights.

The points of resume are all steps of three epochs, borders of epochs too. Each process saves at every step, so every pair and
every triple of points is one more process. Some of them are drawn at random; DOWNSHIFT_RESUMES=all takes all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import unittest
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "companion")]

from downshift_cockpit import imports, lightning_epochs

imports.install()

import lightning.pytorch
import torch
import transformers

import small_trainings
from harness_double import HarnessDouble

ALL = os.environ.get("DOWNSHIFT_RESUMES") == "all"
SEED = int(os.environ.get("DOWNSHIFT_SEED", "7"))
# Longer chains of points that are drawn, and the points of the longest.
CHAINS, LONGEST = 6, 3
# The first optimizer and the first Trainer import a thousand modules: here once, not in each child.
torch.optim.SGD([torch.zeros(1)])
lightning.pytorch.Trainer, transformers.Trainer
warnings.simplefilter("ignore")


class Process:
    """One process of a training, from a checkpoint to the end of the training."""

    def __init__(self, folder, options, start=0, checkpoint=None, code=0, saves=True):
        os.makedirs(folder)
        self.start, self.saved = start, {}
        harness = HarnessDouble(folder=folder, on_event=self.keep)
        options = dict(options, folder=os.path.join(folder, "out"), record=os.path.join(folder, "record"))
        every = {"every_steps": 1 if saves else None, "every_seconds": None}
        output = os.open(os.path.join(folder, "output"), os.O_WRONLY | os.O_CREAT)
        try:
            child = harness.fork(quiet(output), options, checkpoint=every, resume=checkpoint, seed=7)
            status = os.waitpid(child, 0)[1]
            harness.wait_for_end()
        finally:
            harness.close()
            os.close(output)
        with open(os.path.join(folder, "output"), encoding="utf-8", errors="replace") as file:
            self.output = file.read()[-3000:]
        self.events = harness.events
        assert os.waitstatus_to_exitcode(status) == code, (status, self.output)
        if code:
            return
        with open(options["record"], encoding="utf-8") as file:
            record = json.load(file)
        self.updates, self.weights = record["updates"], record["weights"]

    def keep(self, harness, event):
        step = event.get("step")
        if event["event"] == "wrote":
            self.saved[step] = {"kind": "script", "path": event["path"], "step": step, "samples": event["samples"]}
        elif event["event"] == "staged":
            self.saved[step] = harness.newest()

    def until(self, step):
        """Returns what the updates up to a step have read."""
        return self.updates[: step - self.start]

    def of(self, kind):
        return [event for event in self.events if event["event"] == kind]


def quiet(output):
    """Returns the training as the main function of a child that prints into a file."""

    def main(options):
        os.dup2(output, 1)
        os.dup2(output, 2)
        small_trainings.main(options)

    return main


class ResumePoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="resume-points-")
        self.addCleanup(shutil.rmtree, folder, True)
        self.folder, self.processes = folder, {}

    def begin(self, framework, steps_per_epoch, **options):
        self.options = dict(options, framework=framework)
        self.processes = {(): Process(os.path.join(self.folder, "whole"), self.options)}
        whole = self.processes[()]
        self.assertEqual(len(whole.updates), small_trainings.EPOCHS * steps_per_epoch, whole.output)
        if "limit" not in options:
            for begin in range(0, len(whole.updates), steps_per_epoch):
                self.assert_all_read_once(whole.updates[begin : begin + steps_per_epoch])

    def assert_all_read_once(self, updates):
        samples = [sample for update in updates for sample in update]
        self.assertEqual((len(samples), len(set(samples))), (small_trainings.SAMPLES,) * 2)

    def find(self, chain):
        """Returns the process that is resumed at the last point of a chain, after one that was resumed at those before."""
        if chain not in self.processes:
            before = self.find(chain[:-1])
            folder = os.path.join(self.folder, "-".join(map(str, chain)))
            checkpoint, saves = before.saved[chain[-1]], len(chain) < LONGEST
            self.processes[chain] = Process(folder, self.options, chain[-1], checkpoint, saves=saves)
        return self.processes[chain]

    def read_by(self, chain):
        """Returns what the updates of a training resumed at these points have read."""
        begin = [] if not chain else self.read_by(chain[:-1])[: chain[-1]]
        return begin + self.find(chain).updates

    def find_difference(self, chain):
        """Returns how a training resumed at these points differs from the unbroken one; none if it does not."""
        whole, last = self.processes[()], self.find(chain)
        read = self.read_by(chain)
        if len(read) != len(whole.updates):
            return "{}: {} updates instead of {}".format(chain, len(read), len(whole.updates))
        if read != whole.updates:
            return "{}: other samples from update {}".format(
                chain, next(at for at, pair in enumerate(zip(read, whole.updates), 1) if pair[0] != pair[1])
            )
        if last.weights != whole.weights and not self.options.get("saves_within_batch"):
            return "{}: other weights".format(chain)
        hello = last.of("companion")[-1]
        if (hello["grade"], hello["resumed_from"], len(last.of("ended"))) != ("exact", chain[-1], 1):
            return "{}: {}, {} ended".format(chain, hello, len(last.of("ended")))
        return None

    def find_differences(self):
        """Returns the differences of all chains of points, or of some of them."""
        points = sorted(self.processes[()].saved)
        chains = [(a,) for a in points] + [(a, b) for a in points for b in points if a < b]
        chains += [(a, b, c) for a, b in chains[len(points) :] for c in points if b < c]
        if not ALL:
            longer = chains[len(points) :]
            chains = chains[: len(points)] + random.Random(SEED).sample(longer, min(CHAINS, len(longer)))
        return [difference for difference in map(self.find_difference, chains) if difference is not None]

    def check(self, framework, steps_per_epoch=4, **options):
        self.begin(framework, steps_per_epoch, **options)
        self.assertEqual(self.find_differences(), [], "seed {}".format(SEED))


class Loop(ResumePoints):
    def test_batches(self):
        self.check("loop")

    def test_accumulation(self):
        self.check("loop", batch=2, accumulation=2)


class HuggingFace(ResumePoints):
    def test_batches(self):
        self.check("transformers")

    def test_accumulation(self):
        self.check("transformers", batch=2, accumulation=2)

    def test_validation(self):
        self.check("transformers", validation=True)

    def test_a_limit_of_steps(self):
        self.check("transformers", max_steps=12)


class Lightning(ResumePoints):
    def test_batches(self):
        self.check("lightning")

    def test_accumulation(self):
        self.check("lightning", batch=2, accumulation=2)

    def test_validation(self):
        self.check("lightning", validation=True)

    def test_validation_within_epochs(self):
        self.check("lightning", validation=True, interval=2)

    def test_a_rate_that_follows_the_validation(self):
        self.check("lightning", validation=True, plateau=True)

    def test_a_limit_of_steps(self):
        self.check("lightning", max_steps=12, validation=True)

    def test_a_limit_of_batches(self):
        self.check("lightning", 3, limit=3)

    def test_epochs_of_one_step(self):
        self.check("lightning", 1, batch=13)

    def test_checkpoints_of_earlier_versions(self):
        # They were written within the last batch of an epoch: the hooks at its end do not run again.
        self.check("lightning", saves_within_batch=True)

    def test_epochs_that_are_not_counted_are_noticed(self):
        self.begin("lightning", 4, saves_within_batch=True, counts_no_epochs=True)
        self.assertIsNone(self.find_difference((3, 6)))
        self.assertIsNotNone(self.find_difference((4, 6)))

    def test_an_epoch_that_was_not_counted_as_begun_is_continued(self):
        def count(**more):
            return {"ready": 1, "started": 1, "processed": 1, "completed": 1, **more}

        begun = {"total": count(ready=3, started=3), "current": count()}
        batches = {"current": {"processed": 2, "completed": 1}, "is_last_batch": False}
        data = {"combined_loader": [{"epoch": 1, "pass": 0, "served": 2}]}
        loop = {"state_dict": data, "epoch_progress": begun, "epoch_loop.batch_progress": batches}
        lightning_epochs.count_epochs({"loops": {"fit_loop": loop}})
        self.assertEqual(begun["current"], count(ready=2, started=2))
        self.assertEqual(begun["total"], count(ready=4, started=4))
        self.assertIn("combined_loader", data)

    def test_loader_processes(self):
        self.check("lightning", workers=1)

    def test_loaders_made_anew_for_each_epoch(self):
        self.check("lightning", reload=1)


class Failures(unittest.TestCase):
    def fail(self, framework, **options):
        """Runs a training that fails."""
        folder = tempfile.mkdtemp(prefix="resume-points-")
        self.addCleanup(shutil.rmtree, folder, True)
        return Process(os.path.join(folder, "whole"), dict(options, framework=framework), code=1)

    def test_a_training_whose_last_save_the_disk_refuses_does_not_end_as_finished(self):
        # The weights of a Trainer are in a file of their own.
        for framework, file_bytes in (("loop", 1500), ("transformers", 1500), ("transformers", 300), ("lightning", 1500)):
            with self.subTest(framework, file_bytes=file_bytes):
                failed = self.fail(framework, file_bytes=file_bytes)
                self.assertEqual(len(failed.of("step")), 12, "the training goes on without its checkpoints")
                self.assertTrue(all(event["of_disk"] for event in failed.of("save_failed")))
                self.assertEqual([event["class"] for event in failed.of("failed")], ["disk_full"], failed.output)
                self.assertIn("the last step, 12, could not be saved", failed.of("failed")[0]["message"])
                self.assertEqual((failed.of("ended"), failed.saved), ([], {}))

    def test_a_loader_process_that_dies_during_a_save_is_not_blamed_on_the_save(self):
        for framework in small_trainings.TRAININGS:
            with self.subTest(framework):
                failed = self.fail(framework, workers=1, kills_loader=True)
                self.assertRegex(failed.output, "RuntimeError: DataLoader worker .* is killed by signal: Killed")
                kinds = [failed.of(kind) for kind in ("save_failed", "note", "ended", "failed")]
                self.assertEqual((kinds, len(failed.of("step"))), ([[], [], [], []], 1))


if __name__ == "__main__":
    unittest.main()

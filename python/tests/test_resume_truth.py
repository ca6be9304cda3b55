"""The companion observes a resume that a script makes itself, with real torch, safetensors and accelerate."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import unittest

import torch

from harness_double import COMPANION, HarnessDouble

RESUME = {"kind": "script", "path": "/nowhere/200.pt", "step": 200, "samples": 200}


def write_state(folder, step, make=torch.optim.AdamW):
    """Returns the state of a small training after some steps, as most scripts save it."""
    model = torch.nn.Linear(4, 1)
    optimizer = make(model.parameters())
    for _ in range(step):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, os.path.join(folder, "{}.pt".format(step)))
    return state


class Truth(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="resume-truth-")
        self.addCleanup(folder.cleanup)
        self.place = os.path.realpath(folder.name)
        self.harness = HarnessDouble(folder=os.path.join(self.place, "run"))
        self.addCleanup(self.harness.close)
        self.folder = os.path.join(self.place, "out")
        os.mkdir(self.folder)

    def loaded(self, way):
        """Runs the script, and returns the files that it loaded, the count of its optimizer, and whether it restored one."""
        run = self.harness.run("torch_resumes.py", way, self.folder, resume=RESUME)
        self.assertEqual(run.code, 0, run.output[-3000:])
        kinds = [event["event"] for event in run.events]
        self.assertLess(kinds.index("companion"), kinds.index("loaded"))
        self.assertLess(kinds.index("loaded"), kinds.index("step"), "before any step is counted")
        event = run.one("loaded")
        files = [(os.path.relpath(file["path"], self.folder), file["step"]) for file in event["files"]]
        return files, event["optimizer_steps"], event["restored"]

    def test_the_checkpoint_that_enters_the_model_is_reported(self):
        for step in (100, 200, 600):
            write_state(self.folder, step)
        self.assertEqual(self.loaded("newest"), ([("600.pt", 600)], 600, True), "not those that it only read")
        self.assertEqual(self.loaded("open-file"), ([("200.pt", 200)], 200, True))

    def test_a_start_from_scratch_shows(self):
        write_state(self.folder, 200)
        self.assertEqual(self.loaded("nothing"), ([], 0, False))
        self.assertEqual(self.loaded("sgd-nothing"), ([], None, False), "plain momentum is not counted")

    def test_a_state_from_a_file_that_is_not_seen_shows_by_its_count(self):
        with open(os.path.join(self.folder, "200.pickle"), "wb") as file:
            pickle.dump(write_state(self.folder, 200), file)
        self.assertEqual(self.loaded("pickle"), ([], 200, True))

    def test_safetensors_are_seen(self):
        from safetensors.torch import save_file

        save_file(torch.nn.Linear(4, 1).state_dict(), os.path.join(self.folder, "model.safetensors"))
        self.assertEqual(self.loaded("safetensors"), ([("model.safetensors", None)], 0, False))

    def test_the_state_of_accelerate_is_seen(self):
        from accelerate import Accelerator

        accelerator = Accelerator()
        model = torch.nn.Linear(4, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        for _ in range(7):
            optimizer.zero_grad()
            accelerator.backward(model(torch.randn(8, 4)).pow(2).mean())
            optimizer.step()
        accelerator.save_state(os.path.join(self.folder, "state"))
        files, steps, restored = self.loaded("accelerate")
        self.assertEqual((steps, restored), (7, True), files)
        self.assertTrue(files and all(path.startswith("state/") for path, _ in files), files)

    def test_samples_in_files_do_not_hide_the_checkpoint(self):
        write_state(self.folder, 200)
        samples = os.path.join(self.folder, "samples")
        os.mkdir(samples)
        for number in range(200):
            torch.save(torch.zeros(2), os.path.join(samples, "{}.pt".format(number)))
        self.assertEqual(self.loaded("many"), ([("200.pt", 200)], 200, True))

    def test_a_fresh_start_says_nothing(self):
        run = self.harness.run("torch_resumes.py", "nothing", self.folder)
        self.assertEqual((run.code, run.of("loaded")), (0, []), run.output[-3000:])


class Cost(unittest.TestCase):
    def test_a_load_costs_next_to_nothing(self):
        import sys

        sys.path.insert(0, COMPANION)
        self.addCleanup(sys.path.remove, COMPANION)
        from downshift_cockpit import loads

        state = {"model": {str(number): torch.zeros(1) for number in range(1000)}, "step": 5}
        began = time.perf_counter()
        for number in range(1000):
            loads._note_file("/out/{}.pt".format(number), state)
        self.assertLess((time.perf_counter() - began) / 1000, 2e-3, "a load itself takes longer")
        self.assertLessEqual(len(loads._files), loads.MOST_FILES)
        # Nothing of it raises, whatever it is.
        for file, found in ((None, None), (object(), {}), (b"/out", {1: 2}), ("/out", {"step": "x", "a": {"state": 3}})):
            loads._note_file(file, found)
        loads._note_state(None, False)


if __name__ == "__main__":
    unittest.main()

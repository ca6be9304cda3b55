"""The Hugging Face Trainer under the companion: events, orders, guard, and a resume equal bit by bit."""

import os
import tempfile
import unittest

from fake_harness import FakeHarness

STOP = {"order": "stop", "checkpoint": True}


class HuggingFace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hooks-hf-")
        self.addCleanup(folder.cleanup)
        self.harness = FakeHarness(folder.name)

    def out(self, name="out"):
        return os.path.join(self.harness.folder, name)

    def assert_resumes_exactly(self, arguments, resumed_arguments=None, stop_after=12):
        whole = self.harness.run("hf_train.py", "--out", self.out("whole"), *arguments)
        self.assertEqual(whole.code, 0, whole.output[-3000:])
        first = self.harness.run("hf_train.py", "--out", self.out(), *arguments, orders={stop_after: STOP})
        self.assertEqual(first.code, 75, first.output[-3000:])
        stopped = first.one("stopping")
        self.assertTrue(stopped["saved"])
        self.assertEqual(first.of("ended"), [])
        second = self.harness.run(
            "hf_train.py", "--out", self.out(), *(resumed_arguments or arguments), resume=first.resume()
        )
        self.assertEqual(second.code, 0, second.output[-3000:])
        self.assertEqual(second.hello()["resumed_from"], stopped["step"])
        self.assertEqual({**first.losses(), **second.losses()}, whole.losses())
        self.assertEqual({**first.rates(), **second.rates()}, whole.rates())
        self.assertEqual(second.weights(), whole.weights())
        self.assertEqual(min(second.losses()), stopped["step"] + 1)
        return whole, first, second

    def test_resume_with_augmentation_and_loader_processes_is_exact(self):
        whole, first, second = self.assert_resumes_exactly(["--aug", "torch,numpy,python", "--workers", "2", "--eval"])
        self.assertEqual(second.hello()["grade"], "exact")
        self.assertEqual(first.resume()["samples"], first.resume()["step"] * 8)
        hello = whole.hello()
        self.assertEqual((hello["framework"], hello["total_steps"], hello["total_units"]), ("transformers", 40, 320))
        self.assertEqual(hello["knobs"]["training.micro_batch"], 8)
        self.assertEqual(len(whole.of("eval")), 4)
        self.assertGreater(whole.of("eval")[0]["loss"], 0)
        self.assertEqual(whole.one("ended")["step"], 40)
        self.assertTrue(all(event["grad_norm"] > 0 for event in whole.of("step")))


if __name__ == "__main__":
    unittest.main()

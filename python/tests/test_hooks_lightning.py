"""Lightning under the companion: events, orders, guard, and a resume equal bit by bit."""

import os
import tempfile
import unittest

from fake_harness import FakeHarness

STOP = {"order": "stop", "checkpoint": True}


class Lightning(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hooks-pl-")
        self.addCleanup(folder.cleanup)
        self.harness = FakeHarness(folder.name)

    def run_script(self, *arguments, **settings):
        return self.harness.run("lightning_train.py", *arguments, **settings)

    def assert_resumes_exactly(self, arguments, rhythm, at):
        """Saves at every step of a rhythm, resumes from the one at `at`."""
        whole = self.run_script(*arguments)
        self.assertEqual(whole.code, 0, whole.output[-3000:])
        first = self.run_script(*arguments, checkpoint={"every_steps": rhythm, "every_seconds": None}, orders={at: STOP})
        self.assertEqual(first.code, 75, first.output[-3000:])
        second = self.run_script(*arguments, resume=first.resume())
        self.assertEqual(second.code, 0, second.output[-3000:])
        self.assertEqual({**first.losses(), **second.losses()}, whole.losses())
        self.assertEqual({**first.rates(), **second.rates()}, whole.rates())
        self.assertEqual(second.weights(), whole.weights())
        self.assertEqual(min(second.losses()), first.one("stopping")["step"] + 1)
        self.assertEqual(second.hello()["grade"], "exact")
        return whole, first, second

    def test_resume_within_an_epoch_is_exact_with_loader_processes(self):
        whole, first, second = self.assert_resumes_exactly(["--workers", "2", "--val"], None, 12)
        hello = whole.hello()
        self.assertEqual((hello["framework"], hello["total_steps"], hello["total_units"]), ("lightning", 40, 320))
        self.assertEqual((hello["knobs"]["training.micro_batch"], hello["knobs"]["optimizer.lr"]), (8, 0.01))
        self.assertEqual((len(whole.of("eval")), whole.one("ended")["step"]), (4, 40))
        self.assertGreater(whole.of("eval")[0]["loss"], 0)
        self.assertEqual(second.hello()["resumed_from"], first.one("stopping")["step"])


if __name__ == "__main__":
    unittest.main()

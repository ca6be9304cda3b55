"""The Hugging Face Trainer under the companion: events, orders, guard, and a resume equal bit by bit."""

import os
import socket
import tempfile
import unittest

from harness_double import COMPANION, SCRIPTS, HarnessDouble

STOP = {"order": "stop", "checkpoint": True}


class HuggingFace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hooks-hf-")
        self.addCleanup(folder.cleanup)
        self.harness = HarnessDouble(folder=folder.name)
        self.addCleanup(self.harness.close)

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

    def test_resume_with_an_order_drawn_from_the_global_state_is_exact(self):
        self.assert_resumes_exactly(["--aug", "torch", "--sampler", "length", "--accum", "2", "--batch", "4"], stop_after=13)

    def test_without_seeded_fetches_the_resume_differs(self):
        switched_off = {"PYTHONPATH": os.pathsep.join([os.path.join(SCRIPTS, "no_fetch"), COMPANION])}
        whole = self.harness.run("hf_train.py", "--out", self.out("whole"), environment=switched_off)
        first = self.harness.run("hf_train.py", "--out", self.out(), orders={12: STOP}, environment=switched_off)
        second = self.harness.run("hf_train.py", "--out", self.out(), resume=first.resume(), environment=switched_off)
        self.assertEqual((whole.code, first.code, second.code), (0, 75, 0), second.output[-3000:])
        self.assertNotEqual({**first.losses(), **second.losses()}, whole.losses())

    def test_another_micro_batch_reads_the_same_samples(self):
        plain = ["--dropout", "0", "--aug", "torch"]
        whole = self.harness.run("hf_train.py", "--out", self.out("whole"), *plain, trial=True)
        first = self.harness.run("hf_train.py", "--out", self.out(), *plain, orders={12: STOP}, trial=True)
        second = self.harness.run(
            "hf_train.py", "--out", self.out(), *plain, "--batch", "4", "--accum", "2", "--workers", "2",
            resume=first.resume(), trial=True,
        )  # fmt: skip
        hello = second.hello()
        self.assertEqual((hello["grade"], hello["knobs"]["training.micro_batch"]), ("same_data", 4))
        self.assertIn("training.micro_batch", hello["reason"])
        expected, found = whole.losses(), second.losses()
        self.assertEqual(max(found), 40)
        for step, loss in found.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-4)
        again = self.harness.run("hf_train.py", "--out", self.out(), *plain, resume=first.resume(), trial=True)
        prints = {event["step"]: event for event in whole.of("fingerprint")}
        self.assertEqual(len(prints), 40)
        self.assertEqual([prints[event["step"]] for event in again.of("fingerprint")], again.of("fingerprint"))

    def test_a_lower_rate_is_in_force_after_a_resume(self):
        whole = self.harness.run("hf_train.py", "--out", self.out("whole"))
        first = self.harness.run("hf_train.py", "--out", self.out(), orders={12: STOP})
        second = self.harness.run("hf_train.py", "--out", self.out(), "--lr", "5e-4", resume=first.resume())
        self.assertEqual(second.code, 0, second.output[-3000:])
        expected = whole.rates()
        self.assertEqual(min(second.rates()), first.resume()["step"] + 1)
        for step, rate in second.rates().items():
            self.assertAlmostEqual(rate, expected[step] / 2, delta=1e-12)
        self.assertIn("on: 0.0005, as the script asks; the checkpoint had 0.001", second.one("note")["text"])
        self.assertEqual(second.hello()["knobs"]["optimizer.lr"], 5e-4)

    def test_a_rate_that_the_script_sets_itself_stays(self):
        plain = ["--own-rate", "3e-4"]
        first = self.harness.run("hf_train.py", "--out", self.out(), *plain, orders={12: STOP})
        second = self.harness.run("hf_train.py", "--out", self.out(), *plain, "--lr", "5e-4", resume=first.resume())
        self.assertEqual(second.code, 0, second.output[-3000:])
        self.assertEqual({*first.rates().values(), *second.rates().values()}, {3e-4})
        self.assertEqual(second.hello()["knobs"]["optimizer.lr"], 3e-4, "the argument has no effect")
        other = os.path.join(self.harness.folder, "set")
        first = self.harness.run("hf_train.py", "--out", other, orders={12: STOP})
        second = self.harness.run("hf_train.py", "--out", other, "--lr", "5e-4", "--set-rate", resume=first.resume())
        self.assertEqual(second.code, 0, second.output[-3000:])
        whole = self.harness.run("hf_train.py", "--out", self.out("whole"), "--lr", "5e-4").rates()
        for step, rate in second.rates().items():
            self.assertAlmostEqual(rate, whole[step], delta=1e-12)

    def test_a_nan_is_dropped_and_counted(self):
        run = self.harness.run("hf_train.py", "--out", self.out(), "--epochs", "1", inject=["nan@5"])
        self.assertEqual(run.one("injected"), {"event": "injected", "fault": "nan@5", "step": 5})
        skipped = run.one("skipped")
        self.assertEqual((skipped["step"], skipped["what"], skipped["applied"]), (5, "gradient", False))
        self.assertEqual((skipped["where"], skipped["parameter"]), ("transformer.wte.weight",) * 2)
        self.assertEqual(sorted(run.losses()), [1, 2, 3, 4, 6, 7, 8, 9, 10])
        self.assertTrue(all(loss is not None for loss in run.losses().values()))
        unguarded = self.harness.run(
            "hf_train.py", "--out", self.out("2"), "--epochs", "1", inject=["nan@5"], skip_non_finite=False
        )
        self.assertEqual(len(unguarded.of("skipped")), 6, "without the guard every later step is NaN")
        self.assertTrue(unguarded.of("skipped")[0]["applied"])

    def test_other_faults_are_real(self):
        run = self.harness.run("hf_train.py", "--out", self.out(), inject=["oom@3"])
        self.assertEqual(run.code, 1)
        self.assertIn("OutOfMemoryError", run.output)
        failed = run.one("failed")
        self.assertEqual((failed["class"], failed["step"], failed["injected"]), ("device_out_of_memory", 3, True))

    def test_sigterm_is_never_a_normal_end(self):
        run = self.harness.run("hf_train.py", "--out", self.out(), "--jit", "--term-at", "2", "--epochs", "400")
        self.assertEqual(run.of("ended"), [])
        self.assertLess(max(run.losses()), run.hello()["total_steps"])
        self.assertEqual(run.code, 0, "the script itself ends as if it were finished")

    def test_a_stop_that_cannot_be_published_is_refused(self):
        run = self.harness.run("hf_train.py", "--out", self.out(), orders={3: STOP}, publish=False)
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertEqual(run.one("stop_refused")["message"], "the disk is full")
        self.assertEqual(run.one("ended")["step"], 40)

    def test_a_stop_that_is_withdrawn_while_it_saves_does_not_end_the_training(self):
        run = self.harness.run(
            "hf_train.py", "--out", self.out(), orders={3: STOP}, before_answer=[{"order": "withdraw_stop"}]
        )
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertEqual((len(run.of("wrote")), run.of("stopping"), run.of("stop_refused")), (1, [], []))
        self.assertEqual(run.one("ended")["step"], 40)

    def test_a_trial_leaves_the_folder_of_the_script_alone(self):
        run_dir = os.path.join(self.harness.folder, "run")
        own = os.path.join(self.out(), "checkpoint-1")
        os.makedirs(own)
        arguments = ["--out", self.out(), "--save", "epoch", "--keep", "1"]
        first = self.harness.run("hf_train.py", *arguments, orders={12: STOP}, trial=True, run_dir=run_dir)
        self.assertEqual(first.code, 75, first.output[-3000:])
        self.assertEqual((os.listdir(self.out()), os.listdir(own)), (["checkpoint-1"], []))
        path = first.resume()["path"]
        self.assertTrue(path.startswith(os.path.join(run_dir, "output")), path)
        second = self.harness.run("hf_train.py", *arguments, resume=first.resume(), trial=True, run_dir=run_dir)
        self.assertEqual(second.hello()["resumed_from"], first.resume()["step"])
        kept = self.harness.run("hf_train.py", *arguments, orders={12: STOP})
        self.assertEqual(os.path.dirname(kept.resume()["path"]), self.out(), "outside a trial it writes where it says")

    def test_a_save_on_order_that_fails_does_not_end_the_training(self):
        os.makedirs(self.out())
        for step in range(1, 41):
            # A file stands where the checkpoint's folder would be.
            with open(os.path.join(self.out(), "checkpoint-{}".format(step)), "w", encoding="utf-8"):
                pass
        run = self.harness.run("hf_train.py", "--out", self.out(), orders={3: STOP})
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertEqual((run.of("wrote"), run.of("stopping")), ([], []))
        self.assertIn("exists", run.one("save_failed")["message"])
        self.assertEqual(run.one("stop_refused")["step"], run.one("save_failed")["step"])
        self.assertEqual(run.one("ended")["step"], 40)

    def test_saves_keep_their_rhythm_and_the_newest_remain(self):
        run = self.harness.run(
            "hf_train.py", "--out", self.out(), "--save", "epoch", checkpoint={"every_steps": 4, "every_seconds": None}
        )
        steps = [event["step"] for event in run.of("wrote")]
        self.assertEqual(steps, [4, 8, 10, 14, 18, 20, 24, 28, 30, 34, 38, 40])
        left = sorted(int(name.split("-")[1]) for name in os.listdir(self.out()))
        self.assertEqual(left, [10, 20, 28, 30, 34, 38, 40], "the script's own stay, of the others the newest three")

    def test_trl_with_a_lora_resumes_exactly(self):
        whole = self.harness.run("trl_sft.py", "--out", self.out("whole"))
        self.assertEqual(whole.code, 0, whole.output[-3000:])
        first = self.harness.run("trl_sft.py", "--out", self.out(), orders={8: STOP})
        self.assertEqual(first.code, 75, first.output[-3000:])
        second = self.harness.run("trl_sft.py", "--out", self.out(), resume=first.resume())
        self.assertEqual(second.code, 0, second.output[-3000:])
        self.assertEqual({**first.losses(), **second.losses()}, whole.losses())
        self.assertEqual(second.weights(), whole.weights())
        self.assertEqual((whole.hello()["framework"], whole.hello()["grade"]), ("transformers", "exact"))
        self.assertLess(whole.hello()["parameters"], 2000, "only the LoRA is trained")
        self.assertIn("mean_token_accuracy", whole.of("step")[4]["metrics"])

    def test_all_ranks_obey_the_order_that_rank_0_hears(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=0"]
        ranks += ["--master-addr=127.0.0.1", "--master-port={}".format(port)]
        local = {"GLOO_SOCKET_IFNAME": "lo"}
        run = self.harness.run("hf_train.py", "--out", self.out(), orders={5: STOP}, flags=ranks, environment=local)
        self.assertEqual(run.code, 1, "torchrun has one code for every failure of a rank")
        self.assertIn("exitcode  : 75", run.output)
        self.assertEqual({event["rank"] for event in run.of("companion")}, {0, 1})
        stopped = run.one("stopping")
        self.assertEqual(max(run.losses()), stopped["step"])
        self.assertEqual(run.one("wrote")["samples"], stopped["step"] * 16)
        again = self.harness.run(
            "hf_train.py", "--out", self.out(), resume=run.resume(), flags=ranks, environment=local
        )
        self.assertEqual(again.code, 0, again.output[-3000:])
        self.assertEqual(sorted(again.losses()), list(range(stopped["step"] + 1, 21)))

    def test_a_second_training_counts_on(self):
        run = self.harness.run("hf_train.py", "--out", self.out(), "--twice", "--epochs", "1", orders={15: STOP})
        self.assertEqual(run.of("companion")[0]["total_steps"], 10)
        self.assertEqual(run.hello()["total_steps"], 20)
        self.assertEqual((run.hello()["grade"], run.one("ended")["step"]), ("script", 10))
        stopped = run.one("stopping")["step"]
        again = self.harness.run(
            "hf_train.py", "--out", self.out("2"), "--twice", "--epochs", "1", resume=run.resume()
        )
        self.assertEqual(again.code, 0, again.output[-3000:])
        self.assertEqual(sorted(again.losses()), list(range(stopped + 1, 21)), "the first training is not counted again")


if __name__ == "__main__":
    unittest.main()

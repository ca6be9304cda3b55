"""The plain loop against the harness's double: kills at random moments, orders, shifts, faults. Real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "companion")]

import torch

import downshift
import plain_loop
from harness_double import HarnessDouble

torch.set_num_threads(1)
# The first optimizer of a process imports a thousand modules: here once, not in each child.
torch.optim.SGD([torch.zeros(1)])
BATCHES = ["--workers", "2", "--accumulation", "2", "--batch-size", "4"]
KILLS = int(os.environ.get("DOWNSHIFT_KILLS", "10"))


def wait(child):
    """Returns the exit code of a child, or minus the signal that ended it."""
    status = os.waitpid(child, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class PlainLoop(unittest.TestCase):
    def setUp(self):
        self.harnesses = []

    def tearDown(self):
        for harness in self.harnesses:
            harness.close()

    def harness(self, **settings):
        self.harnesses.append(HarnessDouble(**settings))
        return self.harnesses[-1]

    def log(self, harness):
        return os.path.join(harness.folder, "log")

    def run_once(self, harness, options, **settings):
        return wait(harness.fork(plain_loop.main, [self.log(harness)] + options, **settings))

    def unbroken(self, options, **settings):
        harness = self.harness()
        self.assertEqual(self.run_once(harness, options, **settings), 0)
        return plain_loop.read_log(self.log(harness))

    def killed(self, options, at=10, **settings):
        """Runs until the container of step `at` is published, and kills then. Returns the harness."""
        children = []

        def kill(harness, event):
            if event["event"] == "staged" and event["step"] == at:
                os.kill(children[0], signal.SIGKILL)

        harness = self.harness(checkpoint={"every_steps": 5, "every_seconds": None}, on_event=kill)
        children.append(harness.fork(plain_loop.main, [self.log(harness), "--step-ms", "40"] + options, **settings))
        self.assertEqual(wait(children[0]), -signal.SIGKILL)
        self.assertEqual(harness.newest()["step"], at)
        harness.on_event = None
        return harness

    def resumed(self, options, then=(), **settings):
        """Runs until a kill, then to the end with the further options `then`."""
        harness = self.killed(options, **settings)
        self.assertEqual(self.run_once(harness, options + list(then), **settings), 0)
        self.assertEqual(harness.of("companion")[-1]["resumed_from"], 10)
        return plain_loop.read_log(self.log(harness))


class Resume(PlainLoop):
    def test_a_training_records_what_the_next_process_can_import_ahead(self):
        harness = self.harness()
        self.assertEqual(self.run_once(harness, BATCHES), 0)
        with open(os.path.join(harness.folder, "imported-modules.json"), encoding="utf-8") as file:
            names = {name for name, _ in json.load(file)}
        self.assertIn("torch.utils.data", names)
        self.assertFalse({"plain_loop", "downshift", "__main__"} & names, "only installed packages")

    def test_kills_at_random_moments_change_nothing(self):
        straight = self.unbroken(BATCHES + ["--epochs", "4"])
        moments = random.Random(20261122)
        harness = self.harness(checkpoint={"every_steps": 3, "every_seconds": None})
        options, kills, resumed_from = BATCHES + ["--epochs", "4"], 0, set()
        while kills < KILLS:
            if os.path.exists(self.log(harness)) and plain_loop.read_log(self.log(harness))[1] is not None:
                # It reached its end: the next kills hit a new run.
                self.assertEqual(plain_loop.read_log(self.log(harness)), straight)
                harness = self.harness(checkpoint={"every_steps": 3, "every_seconds": None})
            before = len(harness.events)
            child = harness.fork(plain_loop.main, [self.log(harness)] + options)
            with harness.arrived:
                # Counted in events, so that a busy machine trains as far as an idle one. It may end before.
                until = before + moments.randint(3, 15)
                harness.arrived.wait_for(lambda: len(harness.events) >= until, 5 if resumed_from else 60)
            time.sleep(moments.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            kills += wait(child) == -signal.SIGKILL
            resumed_from.update(event["resumed_from"] for event in harness.of("companion"))
        if plain_loop.read_log(self.log(harness))[1] is None:
            self.assertEqual(self.run_once(harness, options), 0)
        self.assertEqual(plain_loop.read_log(self.log(harness)), straight)
        self.assertGreater(len(resumed_from), 2, "the kills were too early to resume from anything")

    def test_the_order_follows_the_seed_of_the_run_file_or_of_the_script_and_not_the_name_of_the_run(self):
        straight = self.unbroken(BATCHES)
        self.assertEqual(self.unbroken(BATCHES, seed=1), straight)
        written = self.unbroken(BATCHES, seed=1, knobs={"training": {"seed": 9}})
        self.assertNotEqual(written[0], straight[0])

    def test_each_restored_part_matters(self):
        straight = self.unbroken(BATCHES)
        self.assertEqual(self.resumed(BATCHES), straight)
        for part in ("models", "optimizers", "schedulers", "random", "position", "others"):
            with self.subTest(part):
                self.assertNotEqual(self.resumed(BATCHES, then=["--forget", part])[:2], straight[:2])

    def test_the_scale_of_the_loss_is_restored(self):
        options = BATCHES + ["--scaler"]
        straight = self.unbroken(options)
        self.assertEqual(self.resumed(options), straight)
        scales = []
        for forgotten in ([], ["--forget", "scaler"]):
            harness = self.killed(options, trial=True)
            harness.events.clear()
            self.run_once(harness, options + forgotten, trial=True)
            scales.append([event["scale"] for event in harness.of("fingerprint")])
        self.assertEqual([len(found) for found in scales], [26, 26])
        self.assertNotEqual(scales[0][0], scales[1][0])

    def test_a_loader_with_an_order_of_its_own_continues(self):
        for workers in ("0", "2"):
            options = ["--loader", "--workers", workers, "--accumulation", "2"]
            harness = self.harness()
            self.assertEqual(self.run_once(harness, options), 0)
            introduction = harness.of("companion")[0]
            self.assertEqual((introduction["grade"], introduction["total_steps"]), ("same_data", 18))
            self.assertIn("order of its own", introduction["reason"])
            straight = plain_loop.read_log(self.log(harness))
            self.assertEqual(self.resumed(options), straight)
            self.assertNotEqual(self.resumed(options, then=["--forget", "position"])[:2], straight[:2])


class BestWeights(PlainLoop):
    FIDS = ["--fids", "9,7,nan,8,6,6"]

    def saved(self, best):
        harness = self.harness(best=best)
        self.assertEqual(self.run_once(harness, self.FIDS), 0)
        return [event["step"] for event in harness.of("staged")]

    def test_the_weights_of_each_better_evaluation_are_saved_before_the_next_step(self):
        last = 36
        self.assertEqual(self.saved({"metric": "fid", "lower_is_better": True, "value": None}), [1, 2, 5, last])
        self.assertEqual(self.saved({"metric": "fid", "lower_is_better": True, "value": 6.5}), [5, last])
        self.assertEqual(self.saved({"metric": "fid", "lower_is_better": False, "value": 8.5}), [1, last])
        self.assertEqual(self.saved({"metric": "loss", "lower_is_better": True, "value": None}), [1, last])

    def test_a_run_that_does_not_keep_the_best_saves_by_its_rhythm_alone(self):
        self.assertEqual(self.saved(None), [36])


def sleep_in_body(_):
    """Sleeps 30 ms behind each step, and evaluates for two seconds behind the third."""
    model = torch.nn.Linear(2, 1)
    run = downshift.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in run.batches(torch.utils.data.TensorDataset(torch.ones(48, 2)), epochs=1, batch_size=8):
        run.step(model(batch[0]).mean())
        time.sleep(0.03)
        if run.step_number == 3:
            with run.evaluating():
                time.sleep(2.0)


class Time(PlainLoop):
    def test_the_rest_of_the_body_counts_as_work_and_an_evaluation_does_not(self):
        harness = self.harness()
        self.assertEqual(wait(harness.fork(sleep_in_body, [])), 0)
        times = [event["compute_ms"] for event in harness.of("step")]
        self.assertEqual(len(times), 6)
        for step, took in enumerate(times[1:], 2):
            self.assertGreaterEqual(took, 30.0, (step, times))
        self.assertLess(times[3], 1500.0, times)


class Shift(PlainLoop):
    def test_smaller_micro_batches_and_loader_processes_keep_samples_and_gradient(self):
        options = ["--no-randomness", "--count", "100"]
        wide = {"training": {"micro_batch": 32, "accumulation": 1}, "knobs": {"loader_processes": 0}}
        narrow = {"training": {"micro_batch": 16, "accumulation": 2}, "knobs": {"loader_processes": 2}}
        runs = []
        for settings in ((wide, wide), (wide, narrow)):
            harness = self.killed(options, at=5, knobs=settings[0])
            self.assertEqual(self.run_once(harness, options, knobs=settings[1]), 0)
            runs.append((harness, plain_loop.read_log(self.log(harness))[0]))
        (first, steps), (second, shifted) = runs
        self.assertEqual({n: line["ids"] for n, line in steps.items()}, {n: line["ids"] for n, line in shifted.items()})
        self.assertEqual(second.of("companion")[-1]["knobs"]["training.micro_batch"], 16)
        self.assertEqual(second.of("companion")[-1]["knobs"]["knobs.loader_processes"], 2)
        norms = [{event["step"]: (event["grad_norm"], event["loss"]) for event in run.of("step")} for run in (first, second)]
        self.assertEqual(sorted(norms[0]), list(range(1, 13)))
        for step, (norm, loss) in norms[0].items():
            self.assertAlmostEqual(norms[1][step][0] / norm, 1.0, delta=1e-5)
            self.assertAlmostEqual(norms[1][step][1] / loss, 1.0, delta=1e-5)
        self.assertEqual({event["micro_batches"] for event in second.of("step")}, {1, 2})

    def test_the_rate_of_the_rung_scales_the_schedule(self):
        harness = self.killed([], knobs={"optimizer": {"lr": 3e-3}})
        self.run_once(harness, [], knobs={"optimizer": {"lr": 1.5e-3}})
        rates = {}
        for event in harness.of("step"):
            rates.setdefault(event["step"], []).append(event["lr"])
        straight = {event["step"]: event["lr"] for event in self.run_for_events(["--epochs", "3"], "step")}
        for step, found in rates.items():
            factor = 1.0 if step <= 10 else 0.5
            self.assertAlmostEqual(found[-1], straight[step] * factor, places=9, msg=step)

    def run_for_events(self, options, kind):
        harness = self.harness()
        self.assertEqual(self.run_once(harness, options), 0)
        return harness.of(kind)


class Orders(PlainLoop):
    def test_a_stop_saves_ends_with_75_and_continues_exactly(self):
        straight = self.unbroken(BATCHES)

        def stop(harness, event):
            if event["event"] == "step" and event["step"] == 7:
                harness.send({"order": "stop", "checkpoint": True})

        harness = self.harness(on_event=stop)
        self.assertEqual(self.run_once(harness, BATCHES + ["--step-ms", "20"]), 75)
        stopping = harness.of("stopping")[0]
        self.assertTrue(stopping["saved"])
        self.assertEqual(harness.newest()["step"], stopping["step"])
        self.assertLessEqual(stopping["step"], 9)
        harness.on_event = None
        self.assertEqual(self.run_once(harness, BATCHES), 0)
        self.assertEqual(plain_loop.read_log(self.log(harness)), straight)
        self.assertEqual(harness.of("ended"), [{"event": "ended", "step": 36}])

    def test_a_stop_that_cannot_be_saved_is_refused(self):
        def stop(harness, event):
            if event["event"] == "step" and event["step"] == 7:
                harness.send({"order": "stop", "checkpoint": True})

        harness = self.harness(on_event=stop, publishes=False)
        self.assertEqual(self.run_once(harness, BATCHES + ["--step-ms", "20"]), 0)
        self.assertEqual([event["message"] for event in harness.of("stop_refused")], ["the disk is full"])
        self.assertEqual(harness.of("step")[-1]["step"], 36)

    def test_a_full_disk_is_told_and_the_run_goes_on(self):
        harness = self.harness(checkpoint={"every_steps": 10, "every_seconds": None}, staging="/dev/full")
        self.assertEqual(self.run_once(harness, []), 0)
        self.assertEqual([event["step"] for event in harness.of("save_failed")], [10, 20, 30, 36])
        self.assertEqual(harness.of("step")[-1]["step"], 36)

    def test_a_stop_that_is_withdrawn_before_or_while_it_saves_does_not_end_the_training(self):
        def stop(harness, event):
            if event["event"] == "step" and event["step"] == 5:
                harness.send({"order": "stop", "checkpoint": True})
                if at_once:
                    harness.send({"order": "withdraw_stop"})

        def withdraw(harness, event):
            if event["event"] == "staged" and event["step"] < 10:
                harness.send({"order": "withdraw_stop"})

        for at_once in (True, False):
            harness = self.harness(on_event=stop, before_answer=withdraw)
            self.assertEqual(self.run_once(harness, BATCHES + ["--step-ms", "5"]), 0)
            self.assertEqual((harness.of("stopping"), harness.of("stop_refused")), ([], []))
            self.assertEqual(len(harness.of("ended")), 1)
            self.assertTrue(at_once or any(event["step"] < 10 for event in harness.of("staged")))

    def test_a_stop_without_a_save_ends_at_once(self):
        def stop(harness, event):
            if event["event"] == "step" and event["step"] == 3:
                harness.send({"order": "stop", "checkpoint": False})

        harness = self.harness(on_event=stop)
        self.assertEqual(self.run_once(harness, ["--step-ms", "20"]), 75)
        self.assertFalse(harness.of("stopping")[0]["saved"])
        self.assertIsNone(harness.newest())

    def test_a_harness_that_dies_does_not_end_the_script(self):
        def vanish(harness, event):
            if event["event"] == "step" and event["step"] == 5:
                harness.close()

        harness = self.harness(on_event=vanish, checkpoint={"every_steps": 3, "every_seconds": None})
        self.assertEqual(self.run_once(harness, BATCHES + ["--step-ms", "5"]), 0)
        self.assertEqual(plain_loop.read_log(self.log(harness)), self.unbroken(BATCHES))


class Faults(PlainLoop):
    def failed(self, fault):
        harness = self.harness(inject=[fault])
        code = self.run_once(harness, BATCHES)
        self.assertEqual([event["fault"] for event in harness.of("injected")], [fault])
        return harness, code

    def test_out_of_memory_is_named_by_its_class(self):
        harness, code = self.failed("oom@4")
        failed = harness.of("failed")[0]
        self.assertEqual((code, failed["class"], failed["step"], failed["injected"]), (1, "device_out_of_memory", 3, True))
        self.assertTrue(failed["message"].startswith("OutOfMemoryError"))

    def test_a_panic_is_an_exception(self):
        harness, code = self.failed("panic@4")
        self.assertEqual((code, harness.of("failed")[0]["class"]), (1, "panic"))

    def test_an_early_end_has_code_0_and_no_ended(self):
        harness, code = self.failed("exit0@4")
        self.assertEqual((code, harness.of("ended"), harness.of("step")[-1]["step"]), (0, [], 3))

    def test_a_hang_shows_its_stack_on_the_signal(self):
        harness = self.harness(inject=["hang@4"])
        child = harness.fork(plain_loop.main, [self.log(harness)] + BATCHES)
        introduction = harness.wait_for(lambda event: event["event"] == "companion")
        harness.wait_for(lambda event: event["event"] == "injected")
        until = time.monotonic() + 30
        text = ""
        while "_carry_out" not in text and time.monotonic() < until:
            os.kill(child, introduction["stacks_signal"])
            time.sleep(0.05)
            with open(introduction["stacks_file"], encoding="utf-8") as file:
                text = file.read()
        os.kill(child, signal.SIGKILL)
        wait(child)
        self.assertEqual(introduction["pid"], child)
        self.assertRegex(text, r'inject.py", line \d+ in _carry_out')
        self.assertRegex(text, r'plain_loop.py", line \d+ in main')

    def test_a_slow_step_takes_ten_times_as_long(self):
        harness, code = self.failed("slow@5-7")
        self.assertEqual(code, 0)

    def test_nan_is_dropped_and_counted(self):
        for options in (BATCHES, BATCHES + ["--scaler"]):
            harness = self.harness(inject=["nan@5"], trial=True)
            self.assertEqual(self.run_once(harness, options), 0)
            skipped = harness.of("skipped")
            self.assertEqual([(event["step"], event["what"]) for event in skipped], [(5, "gradient")])
            self.assertEqual((skipped[0]["where"], skipped[0]["parameter"]), ("0.0.weight", "0.0.weight"))
            self.assertEqual(len(harness.of("step")), 35)
            norms = [event["grad_norm"] for event in harness.of("step")]
            self.assertTrue(all(norm == norm for norm in norms))

    def test_an_unguarded_nan_is_reported_as_taken(self):
        harness = self.harness(inject=["nan@5"], skip_non_finite=False)
        self.assertEqual(self.run_once(harness, []), 0)
        self.assertTrue(all(event["applied"] for event in harness.of("skipped")))
        self.assertEqual(len(harness.of("skipped")), 32)


class Failures(PlainLoop):
    def run_tiny(self, change, **settings):
        """Runs a tiny loop in a child; `change(run)` breaks something in it. Returns the harness and the exit code."""

        def main(arguments):
            import downshift

            model = torch.nn.Linear(2, 1)
            run = downshift.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
            change(run)
            for batch in run.batches(torch.ones(6, 2), batch_size=2):
                run.step(model(batch).sum())
            assert run.step_number == 3

        harness = self.harness()
        return harness, wait(harness.fork(main, [], **settings))

    def test_a_companion_that_fails_never_ends_a_training(self):
        def broken(*arguments):
            raise KeyError("broken")

        for place in ("_introduce", "_report_step", "_at_border", "_save_last"):
            harness, code = self.run_tiny(lambda run: setattr(run, place, broken))
            self.assertEqual(code, 0, place)
            notes = [event["text"] for event in harness.of("note")]
            self.assertEqual(len(notes), 1, place)
            self.assertIn("the companion failed and is off from here on: KeyError: 'broken'", notes[0])

    def test_a_state_that_cannot_be_kept_is_named_and_the_run_goes_on(self):
        class Odd:
            def state_dict(self):
                return {"what": object()}

        harness, code = self.run_tiny(lambda run: run._parts.others.update(odd=Odd()))
        introduction = harness.of("companion")[0]
        self.assertEqual((code, introduction["grade"], introduction["saves"]), (0, "none", False))
        self.assertIn("others.odd.what is a builtins.object", introduction["reason"])
        self.assertEqual(harness.of("ended"), [{"event": "ended", "step": 3}])

    def test_only_the_first_training_of_a_process_is_kept(self):
        def main(arguments):
            import downshift

            for _ in range(2):
                model = torch.nn.Linear(2, 1)
                run = downshift.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
                for batch in run.batches(torch.ones(6, 2), batch_size=2):
                    run.step(model(batch).sum())

        harness = self.harness()
        self.assertEqual(wait(harness.fork(main, [])), 0)
        self.assertEqual([event["step"] for event in harness.of("step")], [1, 2, 3])
        self.assertIn("only the first training", harness.of("note")[0]["text"])


class Bare(PlainLoop):
    def test_the_script_trains_without_downshift(self):
        log = os.path.join(self.harness().folder, "log")
        child = os.fork()
        if not child:
            os.environ.pop("DOWNSHIFT_COMPANION", None)
            try:
                plain_loop.main([log] + BATCHES)
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(wait(child), 0)
        steps, weights, _ = plain_loop.read_log(log)
        self.assertEqual((len(steps), weights is None), (36, False))


if __name__ == "__main__":
    unittest.main()

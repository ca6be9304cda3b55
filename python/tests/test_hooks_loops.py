"""Loops that no framework owns, sitecustomize, and the standby."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness_double import COMPANION, SCRIPTS, HarnessDouble

STOP = {"order": "stop", "checkpoint": True}
LIMIT_SECONDS = 60


class Loops(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hooks-loops-")
        self.addCleanup(folder.cleanup)
        self.harness = HarnessDouble(folder=folder.name)
        self.addCleanup(self.harness.close)

    def test_accelerate(self):
        run = self.harness.run("accelerate_train.py", "--clip", inject=["nan@4"], orders={3: STOP})
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertIn("WEIGHTS True", run.output)
        hello = run.hello()
        self.assertEqual(len(run.of("companion")), 1, "torch's own hook stays silent")
        self.assertEqual((hello["framework"], hello["grade"], hello["saves"]), ("accelerate", "script", False))
        self.assertEqual((hello["knobs"]["training.micro_batch"], hello["knobs"]["training.accumulation"]), (8, 2))
        self.assertEqual((run.one("skipped")["step"], run.one("skipped")["applied"]), (4, False))
        self.assertEqual(sorted(run.losses()), [1, 2, 3] + list(range(5, 11)))
        self.assertEqual(run.of("step")[-1]["samples"], 160)
        self.assertEqual(run.of("step")[0]["micro_batches"], 2)
        self.assertGreater(run.rates()[1], run.rates()[10])
        self.assertEqual(len(run.of("stop_refused")), 1)

    def test_plain_torch(self):
        run = self.harness.run("torch_train.py")
        self.assertEqual(run.code, 0, run.output[-3000:])
        hello = run.one("companion")
        self.assertEqual((hello["framework"], hello["grade"], hello["saves"]), ("torch", "none", False))
        self.assertEqual(sorted(run.losses()), list(range(1, 31)), "two optimizers are one loop")
        self.assertAlmostEqual(run.rates()[1], 0.1)
        self.assertLess(run.rates()[30], 0.02)
        stopped = self.harness.run("torch_train.py", inject=["exit0@5"])
        self.assertEqual((stopped.code, sorted(stopped.losses())), (0, [1, 2, 3, 4]))
        self.assertEqual(stopped.one("injected")["fault"], "exit0@5")

    def test_steps_that_a_scaler_leaves_out_are_counted(self):
        for arguments in ((), ("--fused",), ("--rate=50",)):
            run = self.harness.run("torch_scaler.py", *arguments)
            self.assertEqual(run.code, 0, run.output[-3000:])
            self.assertIn("LEFT OUT 5", run.output)
            self.assertEqual([event["step"] for event in run.of("skipped")], [8, 16, 24, 32, 40], arguments)
            self.assertEqual(len(run.of("step")), 35, arguments)
            self.assertTrue(all(event["rescaled"] and not event["applied"] for event in run.of("skipped")), run.of("skipped"))
            self.assertTrue(run.hello()["counts_skips"])

    def test_a_disabled_scaler_is_no_scaler(self):
        run = self.harness.run("torch_scaler.py", "--disabled")
        self.assertEqual((run.code, len(run.of("step")), run.of("skipped")), (0, 40, []), run.output[-3000:])

    def test_a_loop_shows_that_it_leaves_out_nothing_by_a_step_for_every_batch(self):
        for arguments, wanted in ((("4",), True), (("4", "--drop"), False), (("1",), True), (("0",), False)):
            run = self.harness.run("torch_batches.py", *arguments)
            self.assertEqual(run.code, 0, run.output[-3000:])
            self.assertEqual(run.hello()["counts_skips"], wanted, arguments)
            self.assertEqual(run.of("skipped"), [], "why a batch was dropped is not known")

    def test_a_rate_that_is_set_by_hand_is_that_which_was_asked_for(self):
        def rates(*arguments, wanted):
            run = self.harness.run("torch_by_hand.py", *arguments, knobs={"optimizer": {"lr": wanted}})
            self.assertEqual(run.code, 0, run.output[-3000:])
            return [hello["knobs"]["optimizer.lr"] for hello in run.of("companion")]

        state = "--restore=" + os.path.join(self.harness.folder, "state.pt")
        self.assertEqual(rates("--lr=0.1", "--warmup=50", state, wanted=0.1), [0.1])
        self.assertEqual(rates("--lr=0.05", "--warmup=50", state, wanted=0.05), [None, 0.05], "restored, and then set")
        self.assertEqual(rates("--lr=0.05", "--warmup=90", "--restore=", wanted=0.1), [None], "it moves: nobody knows")
        self.assertEqual(rates("--lr=0.05", "--constant", "--restore=", wanted=0.1), [None, 0.05])
        # A rate that `load_state_dict` brings back stays in force.
        state += "-2"
        self.assertEqual(rates("--lr=0.1", "--constant", state, wanted=0.1), [0.1])
        self.assertEqual(rates("--lr=0.05", "--constant", state, wanted=0.05), [None, 0.1])

    def test_a_loop_that_loads_an_earlier_state_counts_on(self):
        run = self.harness.run("torch_goes_back.py")
        self.assertEqual(run.code, 0, run.output[-3000:])
        self.assertEqual([event["step"] for event in run.of("step")], list(range(1, 21)), "each update once")

    def test_without_a_harness_the_script_trains_and_nothing_is_printed(self):
        with_companion = self.run_bare("torch_train.py", DOWNSHIFT_COMPANION="/nonexistent/companion.json")
        self.assertEqual(with_companion, "WEIGHTS done\n")
        dead = os.path.join(self.harness.folder, "companion.json")
        with open(dead, "w", encoding="utf-8") as file:
            json.dump({"protocol": 1, "socket": "/nonexistent/s", "attempt_dir": self.harness.folder}, file)
        self.assertEqual(self.run_bare("torch_train.py", DOWNSHIFT_COMPANION=dead), "WEIGHTS done\n")

    def test_fetches_draw_from_seed_epoch_and_index(self):
        found = json.loads(self.run_bare("fetch_streams.py", DOWNSHIFT_COMPANION="/nonexistent"))
        plain = found["plain"]
        self.assertEqual(sorted(row[0] for row in plain), list(range(12)))
        self.assertNotEqual([row[0] for row in plain], list(range(12)))
        self.assertEqual(len({value for row in plain for value in row[1:]}), 36, "every library has its own stream")
        for kind in ("fork", "spawn", "batches of 4"):
            self.assertEqual(found[kind], plain, kind)
        self.assertEqual(found["two epochs"][:12], plain)
        self.assertNotEqual(sorted(found["two epochs"][12:]), sorted(plain), "augmentations differ between epochs")
        self.assertEqual(found["persistent"], found["two epochs"])
        self.assertTrue(found["untouched"], "loading draws nothing from the global state")
        self.assertIsNone(found["limits"][0])
        self.assertIn("generator", found["limits"][1])

    def test_sitecustomize_is_light_and_passes_on(self):
        path = os.pathsep.join([COMPANION, os.path.join(SCRIPTS, "next_site")])
        self.assertEqual(self.run_bare("quiet.py", PYTHONPATH=path), "HEAVY []\nNEXT True\nCOMPANION False\n")
        kept = self.run_bare("quiet.py", PYTHONPATH=path, DOWNSHIFT_COMPANION="/nonexistent")
        self.assertIn("NEXT True\nCOMPANION True", kept)
        self.assertNotIn("torch", kept)
        for flag, expected in (("-P", True), ("-I", False), ("-E", False), ("-S", False)):
            if flag != "-P" or sys.version_info >= (3, 11):
                said = self.run_bare("quiet.py", flags=[flag], DOWNSHIFT_COMPANION="/nonexistent")
                self.assertIn("COMPANION {}".format(expected), said, flag)

    def test_the_short_name_is_the_package_and_another_of_that_name_is_said(self):
        ours = self.harness.run("short_name.py")
        self.assertEqual((ours.code, ours.of("note")), (0, []), ours.output)
        self.assertIn("SAME True", ours.output)
        for script in (os.path.join("namesake", "train.py"), "namesake_behind.py"):
            other = self.harness.run(script)
            self.assertIn("ATTACH False", other.output)
            text = other.one("note")["text"]
            self.assertIn("finds another package, {}".format(os.path.join(SCRIPTS, "namesake", "downshift")), text)
            self.assertIn("import downshift_cockpit as downshift", text)

    def test_a_standby_imports_ahead_and_starts_when_the_gate_closes(self):
        first = self.harness.run("torch_train.py")
        self.assertEqual(first.code, 0)
        modules = os.path.join(self.harness.folder, "imported-modules.json")
        with open(modules, encoding="utf-8") as file:
            names = [name for name, _ in json.load(file)]
        self.assertIn("torch", names)
        self.assertFalse({"__main__", "downshift", "downshift_cockpit", "downshift_cockpit.wire"} & set(names))
        gate = os.path.join(self.harness.folder, "gate")
        os.mkfifo(gate)
        opener = threading.Thread(target=self.open_gate, args=(gate,))
        opener.start()
        second = self.harness.run("torch_train.py", gate=gate)
        opener.join()
        self.assertEqual((second.code, sorted(second.losses())), (0, list(range(1, 31))))

    def test_a_standby_ends_when_its_parent_dies(self):
        gate = os.path.join(self.harness.folder, "gate")
        os.mkfifo(gate)
        setup = os.path.join(self.harness.folder, "companion.json")
        with open(setup, "w", encoding="utf-8") as file:
            json.dump({"protocol": 1, "gate": gate}, file)
        # Only the child gets the setup; the parent must not wait at the gate.
        program = (
            "import os, subprocess, sys; os.environ.update(PYTHONPATH={!r}, DOWNSHIFT_COMPANION={!r});"
            "print(subprocess.Popen([sys.executable, '-c', '']).pid, flush=True); sys.stdin.read(); os._exit(0)"
        ).format(COMPANION, setup)
        bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with subprocess.Popen(
            [sys.executable, "-c", program], env=bare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent:
            pid = int(parent.stdout.readline())
            self.wait_until(lambda: gate in open_files(pid))
        self.wait_until(lambda: not is_alive(pid))

    def test_a_standby_that_cannot_wait_ends_before_the_script(self):
        gate = os.path.join(self.harness.folder, "gone")
        setup = os.path.join(self.harness.folder, "companion.json")
        self.write_setup(setup, gate=gate)
        ended = self.run_program("print('trained')", setup)
        self.assertEqual((ended.returncode, ended.stdout), (75, ""))
        let_through = (
            "from downshift_cockpit import standby;"
            "standby.import_recorded = lambda _: open({0!r}, 'w').write('{{\"protocol\": 1}}');"
            "open({0!r}, 'w').write('{{\"protocol\": 1, \"gate\": \"gone\"}}'); standby.wait(); print('trained')"
        ).format(setup)
        self.write_setup(setup)
        self.assertEqual(self.run_program(let_through, setup).stdout, "trained\n")

    def test_scripts_that_depend_on_the_order_of_imports_have_no_standby(self):
        setup, modules = (os.path.join(self.harness.folder, name) for name in ("companion.json", "modules.json"))
        self.write_setup(setup)
        record = "from downshift_cockpit import standby; standby.record({!r})".format(modules)
        own = os.path.join(self.harness.folder, "own")
        os.mkdir(own)
        with open(os.path.join(own, "sympy.py"), "w", encoding="utf-8"):
            pass
        for before, is_kept in (
            ("import torch;", True),
            ("import os; os.environ['OMP_NUM_THREADS'] = '1'; import torch;", False),
            ("import torch, os; os.environ['LATER'] = '1';", True),
            ("import sys; sys.path.insert(0, {!r}); import sympy, json;".format(own), False),
        ):
            ended = self.run_program(before + record, setup)
            self.assertEqual(ended.returncode, 0, ended.stdout)
            with open(modules, encoding="utf-8") as file:
                self.assertEqual(bool(json.load(file)), is_kept, before)

    def test_a_list_of_modules_that_cannot_be_written_changes_nothing(self):
        os.mkdir(os.path.join(self.harness.folder, "imported-modules.json"))
        run = self.harness.run("torch_train.py")
        self.assertEqual((run.code, sorted(run.losses())), (0, list(range(1, 31))))
        self.assertEqual([name for name in os.listdir(self.harness.folder) if name.startswith("imported-modules.json.")], [])

    def write_setup(self, path, **settings):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dict(protocol=1, **settings), file)

    def run_program(self, program, setup):
        environment = dict(os.environ, PYTHONPATH=COMPANION, DOWNSHIFT_COMPANION=setup)
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def open_gate(self, gate):
        def open_for_writing():
            try:
                return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENXIO)
                return None

        # It opens only while a standby reads: one that passes a shut gate is waited for in vain.
        os.close(self.wait_until(open_for_writing))

    def run_bare(self, script, flags=(), **variables):
        environment = dict(os.environ, OMP_NUM_THREADS="1", **{"PYTHONPATH": COMPANION, **variables})
        command = [sys.executable, *flags, os.path.join(SCRIPTS, script)]
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        ).stdout

    def wait_until(self, condition):
        limit = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < limit:
            found = condition()
            if found is not None and found is not False:
                return found
            time.sleep(0.02)
        self.fail("waited in vain")


def open_files(pid):
    folder = "/proc/{}/fd".format(pid)
    return [os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)]


def is_alive(pid):
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()

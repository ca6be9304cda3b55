"""Hugging Face and Lightning trainings through the program itself: restart, shift, faults, SIGTERM, none of it with a
changed line of the script.

Run by the interpreter whose PyTorch the scripts use: `python python/tests/end_to_end_frameworks.py`. The program is
`target/debug/downshift`, or the one that DOWNSHIFT_PROGRAM names.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from program import PROGRAM

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_SECONDS = 400
RUN_FILE = """\
name: kept
task: command
command: [{python}, {script}, {arguments}]
training: {{ micro_batch: 8, accumulation: 1 }}
ladder:
  - {{ name: accumulate, relieves: [memory], set: {{ training.micro_batch: 4, training.accumulation: 2 }} }}
"""
KNOBS = ["--batch={training.micro_batch}", "--accum={training.accumulation}"]


class Run:
    """A run of the program in a folder of its own."""

    def __init__(self, script, arguments, *options, rest=""):
        quoted = ", ".join(json.dumps(argument) for argument in KNOBS + arguments)
        path = os.path.join(HERE, "scripts", script)
        self._start(RUN_FILE.format(python=sys.executable, script=path, arguments=quoted) + rest, options)

    @classmethod
    def of_file(cls, text, *options):
        """Starts a run file."""
        run = cls.__new__(cls)
        run._start(text, options)
        return run

    def _start(self, text, options):
        self._folder = tempfile.TemporaryDirectory(prefix="dse-")
        self.folder = self._folder.name
        with open(os.path.join(self.folder, "run.yaml"), "w", encoding="utf-8") as file:
            file.write(text)
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment.update(
            DOWNSHIFT_RUNS_DIR=os.path.join(self.folder, "runs"), XDG_RUNTIME_DIR=self.folder, OMP_NUM_THREADS="1",
            HF_HUB_OFFLINE="1",
        )  # fmt: skip
        for name in ("STATE", "CACHE", "CONFIG"):
            self.environment["XDG_{}_HOME".format(name)] = os.path.join(self.folder, name.lower())
        self.log = open(os.path.join(self.folder, "headless.log"), "w", encoding="utf-8")
        self._begin("run", "run.yaml", "--headless", "--device", "cpu", "--trust", *options)

    def _begin(self, *words):
        self.process = subprocess.Popen(
            [PROGRAM, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log,
        )  # fmt: skip

    def resume(self, *options):
        """Resumes a run that has ended."""
        self._begin("resume", "--headless", "--trust", *options)

    def close(self):
        if self.process.poll() is None:
            self.call("stop")
            self.process.wait(LIMIT_SECONDS)
        self.log.close()
        self._folder.cleanup()

    def call(self, *arguments):
        done = subprocess.run(
            [PROGRAM, *arguments], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        return done.returncode, done.stdout

    def status(self):
        code, said = self.call("status", "--format", "json")
        try:
            return json.loads(said) if code == 0 else {}
        except ValueError:
            return {}

    def wait(self, condition, what):
        limit = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < limit:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise AssertionError("{} did not happen: {}".format(what, self.said()[-3000:]))

    def wait_for_step(self, step):
        self.wait(lambda: (self.status().get("step") or 0) >= step, "step {}".format(step))

    def finish(self):
        return self.process.wait(LIMIT_SECONDS)

    def said(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def weights(self):
        """Returns the line of the script that names its final weights."""
        found = set()
        for path in glob.glob(os.path.join(self.folder, "runs", "**"), recursive=True):
            if path.endswith(".log") and os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    found.update(line[line.index("WEIGHTS") :].strip() for line in file if "WEIGHTS" in line)
        assert len(found) == 1, (found, self.said()[-3000:])
        return found.pop()

    def process_of(self, role):
        """Returns the process of the script, of its harness or of the keeper."""
        if role == "script":
            return self.wait(self.script_pid, "the script")
        word = {"harness": b"harness", "keeper": b"keeper"}[role]

        def find():
            for name in os.listdir("/proc"):
                try:
                    with open("/proc/{}/cmdline".format(name), "rb") as file:
                        words = file.read().split(b"\0")
                except OSError:
                    continue
                # The parent of the keeper starts another one.
                if len(words) > 1 and words[1] == word and b"--parent" not in words and any(self.folder.encode() in part for part in words):
                    return int(name)
            return None

        return self.wait(find, "a " + role)

    def script_pid(self):
        """Returns the process of the script that trains now."""
        for name in os.listdir("/proc"):
            try:
                with open("/proc/{}/cmdline".format(name), "rb") as file:
                    words = file.read().split(b"\0")
                with open("/proc/{}/environ".format(name), "rb") as file:
                    is_ours = self.folder.encode() in file.read()
            except OSError:
                continue
            if is_ours and words[0] == sys.executable.encode() and any(b"scripts" in word for word in words[1:3]):
                return int(name)
        return None


class Frameworks(unittest.TestCase):
    def start(self, script, arguments, *options, rest=""):
        run = Run(script, arguments, *options, rest=rest)
        self.addCleanup(run.close)
        return run

    def check_exact(self, script, arguments):
        whole = self.start(script, arguments)
        self.assertEqual(whole.finish(), 0, whole.said()[-3000:])
        run = self.start(script, arguments)
        run.wait_for_step(15)
        self.assertEqual(run.call("restart")[0], 0)
        run.wait(lambda: (run.status().get("attempts") or 0) >= 2, "the restart")
        run.wait_for_step(60)
        os.kill(run.script_pid(), signal.SIGKILL)
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        self.assertEqual(run.weights(), whole.weights())

    def test_hugging_face_restarts_exactly(self):
        self.check_exact("hf_train.py", ["--out={run_dir}/out", "--epochs=20", "--aug=torch,numpy,python", "--workers=2"])

    def test_lightning_restarts_exactly(self):
        self.check_exact("lightning_train.py", ["--epochs=40", "--workers=2"])

    def test_lightning_restarts_at_the_end_of_an_epoch_and_then_within_one(self):
        arguments = ["--epochs=4", "--wait-at=10,15"]
        whole = self.start("lightning_train.py", arguments[:1])
        self.assertEqual(whole.finish(), 0, whole.said()[-3000:])
        run = self.start("lightning_train.py", arguments)
        # Requested before a step is reported, they are carried out behind it: 10 is the end of the first epoch.
        for attempt, step in ((2, 9), (3, 14)):
            run.wait_for_step(step)
            self.assertEqual(run.call("restart")[0], 0)
            run.wait(lambda: (run.status().get("attempts") or 0) >= attempt, "the restart")
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        self.assertRegex(run.said(), r"resumed at step 10\b")
        self.assertRegex(run.said(), r"resumed at step 15\b")
        self.assertEqual(run.weights(), whole.weights())
        self.assertIn("STEP 40", run.weights())

    def test_a_shift_is_read_back(self):
        run = self.start("hf_train.py", ["--out={run_dir}/out", "--epochs=40"])
        run.wait_for_step(15)
        code, said = run.call("shift", "accumulate")
        self.assertEqual(code, 0, said)
        run.wait(
            lambda: (run.status().get("companion") or {}).get("knobs", {}).get("training.micro_batch") == 4, "the new batch"
        )
        self.assertEqual(run.status()["companion"]["grade"], "same_data")
        self.assertEqual(run.status()["companion"]["ignored"], [])
        (length,) = glob.glob(os.path.join(run.folder, "runs", "kept-*", "length.json"))
        with open(length, encoding="utf-8") as file:
            self.assertEqual(json.load(file), 400)
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        self.assertIn("STEP 400", run.weights())

    def test_sigterm_is_never_finished(self):
        # transformers saves three seconds after the signal; the training is much longer than that.
        run = self.start("hf_train.py", ["--out={run_dir}/out", "--epochs=200", "--jit"])
        run.wait_for_step(15)
        os.kill(run.script_pid(), signal.SIGTERM)
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        status = run.status()
        self.assertEqual((status["step"], status["attempts"] >= 2), (2000, True), status)

    def test_an_injected_nan_is_dropped_and_counted(self):
        run = self.start("hf_train.py", ["--out={run_dir}/out", "--epochs=4"], "--inject", "nan@7")
        self.assertEqual(run.finish(), 0, run.said()[-3000:])
        status = run.status()
        self.assertEqual((status["step"], status["skipped"]), (40, 1), run.said()[-3000:])

    def test_a_loop_whose_last_step_does_not_fit_the_disk_is_not_finished(self):
        # Two ranks take half as many steps.
        for rest, steps in (("", 24), ("ranks: 2\n", 12)):
            with self.subTest(rest):
                run = self.start("full_disk.py", ["--room={run_dir}/room"], rest=rest)
                self.assertEqual(run.finish(), 4, run.said()[-3000:])
                self.assertIn("disk full: ", run.said())
                self.assertIn("the last step, {}, could not be saved".format(steps), run.said())
                (run_dir,) = glob.glob(os.path.join(run.folder, "runs", "kept-*"))
                open(os.path.join(run_dir, "room"), "w").close()
                code, said = run.call("resume", "--headless", "--trust")
                self.assertEqual(code, 0, said[-3000:])
                self.assertEqual(run.status()["step"], steps, said[-3000:])

    def test_a_bar_that_counts_within_epochs_does_not_move_a_resume(self):
        rest = "resume: {arguments: [--resume, '{checkpoint}']}\ncheckpoints: {match: '{run_dir}/out/step_*.pt'}\n"
        # Step 25 is in epoch 0, whose bar begins again; step 50 is in epoch 1, which may be the first or the second one.
        for checkpoint in (25, 50):
            with self.subTest(checkpoint):
                run = self.start("torch_epoch_bar.py", ["--out={run_dir}/out"], rest=rest)
                run.wait_for_step(checkpoint + 6)
                os.kill(run.script_pid(), signal.SIGKILL)
                self.assertEqual(run.finish(), 0, run.said()[-3000:])
                said = run.said()
                self.assertIn("resumed at step {}".format(checkpoint), said)
                self.assertEqual(run.status()["step"], 120, said[-3000:])
                code, rows = run.call("export", "--format", "csv")
                self.assertEqual(code, 0, rows)
                names, *rows = [row.split(",") for row in rows.splitlines()]
                attempt, step = names.index("attempt"), names.index("step")
                resumed = [int(row[step]) for row in rows if row[attempt] == "2"]
                self.assertEqual(resumed, list(range(checkpoint + 1, 121)), said[-3000:])

    def test_what_a_script_loads_by_itself_is_what_is_said_of_its_resume(self):
        rest = "resume: {}\ncheckpoints: {match: '{run_dir}/out-8/step_*.pt'}\n"
        run = self.start("torch_finds.py", ["--out={run_dir}/out-{training.micro_batch}"], rest=rest)

        def wait_resumed(attempt, state):
            return run.wait(
                lambda: (
                    (status := run.status()).get("attempts") == attempt
                    and (status.get("resumed") or {}).get("state") == state
                    and status
                ),
                "attempt {} {}".format(attempt, state),
            )

        run.wait(lambda: run.status().get("durable_step") == 60, "the last checkpoint")
        run.wait_for_step(70)
        os.kill(run.script_pid(), signal.SIGKILL)
        resumed = wait_resumed(2, "verified")["resumed"]
        self.assertEqual((resumed["step"], os.path.basename(resumed["file"])), (60, "step_60.pt"))
        self.assertRegex(run.said(), r"resumed at step 60 \(.*step_60.pt was loaded\)")
        run.call("stop")
        self.assertEqual(run.finish(), 3, run.said()[-3000:])
        run.resume("--from", "20")
        found = wait_resumed(3, "contradicted")["resumed"]
        self.assertEqual((found["asked"], found["found"]["from"], found["found"]["step"]), (20, "checkpoint", 60))
        run.wait_for_step(62)
        # The next rung has another folder, which is empty.
        code, said = run.call("shift", "accumulate")
        self.assertEqual(code, 0, said)
        # The status shows the finding of the third attempt until the fourth one reports.
        run.wait(
            lambda: wait_resumed(4, "contradicted")["resumed"]["found"] == {"from": "beginning"},
            "attempt 4 from the beginning",
        )
        status = run.wait(lambda: (status := run.status()).get("step") and status, "a step")
        self.assertLess(status["step"], 60, "its steps count from the beginning")
        run.call("stop")
        self.assertEqual(run.finish(), 3, run.said()[-3000:])
        self.assertIn("but the script starts from scratch", run.said())
        code, rows = run.call("export", "--format", "csv")
        names, *rows = [row.split(",") for row in rows.splitlines()]
        attempt, step = names.index("attempt"), names.index("step")
        firsts = [min(int(row[step]) for row in rows if row[attempt] == number) for number in "234"]
        self.assertEqual(firsts, [61, 61, 1], run.said()[-3000:])


if __name__ == "__main__":
    unittest.main(verbosity=2)

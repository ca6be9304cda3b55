"""A training under the real program: `kill -9` of script, harness and keeper at random moments changes nothing.

Run by the interpreter whose PyTorch the script uses: `python python/tests/end_to_end_loop.py [--trainer transformers]
[--standby] [--kills 200] [--seed 7] [--program DOWNSHIFT]`. Losses, sample ids, draws and final weights are compared bit by
bit with those of an unbroken run. With --standby, a restart is requested before each kill, and the process that was started
ahead for it is killed in its turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from program import PROGRAM

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "companion")]
SCRIPT = os.path.join(HERE, "plain_loop.py")
LOGGED = os.path.join(HERE, "scripts", "logged_steps.py")
COMMANDS = {
    "loop": [SCRIPT, "{run_dir}/steps.log", "--workers=2", "--batch-size=4", "--accumulation=2"],
    "transformers": [LOGGED, "{run_dir}/steps.log", "--framework=transformers", "--out={run_dir}/out"],
    "lightning": [LOGGED, "{run_dir}/steps.log", "--framework=lightning", "--out={run_dir}/out"],
}
LIMIT = 180.0
STEPS_PER_KILL = 60
STEPS_PER_EPOCH = 12

RUN_FILE = """\
name: loop
task: command
command: {command}
knobs: {{ seed: 5 }}
watch:
  autopilot: false
  restarts_without_progress: 1000
  restarts_in_window: 100000
  spike: {{ sigma: 0 }}
"""


class Run:
    """One run of the program, in a folder of its own."""

    ROLES = ("script", "harness", "keeper")

    def __init__(self, program, folder, run_file):
        self.program = program
        self.folder = folder
        self.environment = dict(os.environ, DOWNSHIFT_RUNS_DIR=os.path.join(folder, "runs"), XDG_RUNTIME_DIR=folder)
        for name in ("STATE", "CACHE", "CONFIG"):
            self.environment["XDG_{}_HOME".format(name)] = os.path.join(folder, name.lower())
        for name in ("PYTHONPATH", "DOWNSHIFT_COMPANION", "DOWNSHIFT_CONFIG"):
            self.environment.pop(name, None)
        path = os.path.join(folder, "run.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(run_file)
        self.journal = os.path.join(folder, "journal")
        with open(self.journal, "w", encoding="utf-8") as journal:
            arguments = [program, "run", path, "--headless", "--trust", "--device", "cpu"]
            self.process = subprocess.Popen(
                arguments, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=journal, stderr=journal
            )

    def run_dir(self):
        runs = self.environment["DOWNSHIFT_RUNS_DIR"]
        found = [os.path.join(runs, name) for name in os.listdir(runs)] if os.path.isdir(runs) else []
        found = [path for path in found if os.path.isfile(os.path.join(path, "run.yaml"))]
        return found[0] if found else None

    def log(self):
        return os.path.join(self.run_dir() or self.folder, "steps.log")

    def count_lines(self):
        try:
            with open(self.log(), "rb") as file:
                return file.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def call(self, *arguments):
        """Runs a command of the program on this run."""
        command = [self.program] + list(arguments)
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return done.returncode, done.stdout.decode()

    def pid_of(self, role):
        """Returns the process that plays a role now, or none."""
        if role == "standby":
            return find_standby(self.folder, self.pid_of("script"))
        name = {"keeper": "keeper.lock", "harness": "worker.lock", "script": "worker.lock"}[role]
        try:
            with open(os.path.join(self.run_dir(), name), encoding="utf-8") as file:
                owner = json.load(file)["pid"]
            return owner if role != "script" else find_child(owner)
        except (OSError, ValueError, KeyError):
            return None

    def fail(self, text):
        with open(self.journal, encoding="utf-8", errors="replace") as journal:
            sys.exit("{}\n{}".format(text, journal.read()[-6000:]))

    def wait_lines(self, wanted):
        """Waits until the log has `wanted` lines, or the run is over. Returns whether it still runs."""
        until = time.monotonic() + LIMIT
        while self.count_lines() < wanted:
            if self.process.poll() is not None:
                return False
            if time.monotonic() > until:
                self.fail("no step for {} s".format(LIMIT))
            time.sleep(0.02)
        return True

    def wait_end(self):
        try:
            code = self.process.wait(1800)
        except subprocess.TimeoutExpired:
            self.fail("the run does not end")
        if code != 0:
            self.fail("the run ended with code {}".format(code))

    def length(self):
        """Returns the length of the run in samples, as its status has it."""
        code, text = self.call("status", "--format", "json")
        return json.loads(text)["total_samples"] if code == 0 else None

    def kill_at_random(self, kills, moments, length=None, standby=False):
        """Kills the processes of all roles in a random order at random moments. Returns how often each. Whoever was killed,
        the run stays as long as `length` says."""
        done, roles = dict.fromkeys(self.ROLES + ("standby",) * standby, 0), []
        while sum(done.values()) < kills:
            if not self.wait_lines(self.count_lines() + 8):
                self.fail("the run was over after {} of {} kills".format(sum(done.values()), kills))
            self.call("restart" if standby else "checkpoint")
            if length is not None and self.length() not in (None, 0, length):
                self.fail("the run has {} samples and not {}".format(self.length(), length))
            time.sleep(moments.uniform(0.0, 0.6))
            if not roles:
                roles = sorted(done)
                moments.shuffle(roles)
            role = roles.pop()
            attempt = self.find_attempt()
            try:
                os.kill(self.pid_of(role), signal.SIGKILL)
            except (ProcessLookupError, TypeError):
                roles.append(role)
                continue
            done[role] += 1
            print("{:4} killed the {} ({} lines)".format(sum(done.values()), role, self.count_lines()), flush=True)
            self.wait_gone(attempt, role)
        return done

    def find_attempt(self):
        """Returns the processes that a kill of the harness, or of one of them, must end."""
        return []

    def wait_gone(self, attempt, role):
        """Waits until they have ended."""


def run_file(trainer, epochs, step_ms):
    options = ["--epochs={}".format(epochs), "--step-ms={}".format(step_ms)]
    return RUN_FILE.format(command=json.dumps([sys.executable] + COMMANDS[trainer] + options))


def find_child(parent):
    """Returns the training script below a harness."""
    with open("/proc/{0}/task/{0}/children".format(parent), encoding="utf-8") as file:
        children = file.read().split()
    return next((int(child) for child in children if is_script(child)), None)


def is_script(pid):
    with open("/proc/{}/cmdline".format(pid), "rb") as file:
        words = file.read().split(b"\0")
    return SCRIPT.encode() in words or LOGGED.encode() in words


def find_standby(folder, script):
    """Returns a process in a folder that waits to train after this script."""
    for name in os.listdir("/proc"):
        try:
            with open("/proc/{}/environ".format(name), "rb") as file:
                is_ours = folder.encode() in file.read()
            with open("/proc/{}/stat".format(name), encoding="utf-8") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            # A loader process is a child of a script.
            if is_ours and int(name) != script and is_script(name) and not is_script(parent):
                return int(name)
        except (OSError, ValueError):
            continue
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", choices=sorted(COMMANDS), default="loop")
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--program", default=PROGRAM)
    given = parser.parse_args()
    program = os.path.abspath(given.program)
    import plain_loop

    epochs = 3 + given.kills * STEPS_PER_KILL // STEPS_PER_EPOCH
    with tempfile.TemporaryDirectory() as folder:
        straight = Run(program, folder, run_file(given.trainer, epochs, 0))
        straight.wait_end()
        expected, length = plain_loop.read_log(straight.log()), straight.length()
    if expected[1] is None or len(expected[0]) != epochs * STEPS_PER_EPOCH:
        sys.exit("the unbroken run did not take its {} steps".format(epochs * STEPS_PER_EPOCH))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(program, folder, run_file(given.trainer, epochs, 20))
        done = run.kill_at_random(given.kills, random.Random(given.seed), length, given.standby)
        run.wait_end()
        found = plain_loop.read_log(run.log())
        code, text = run.call("checkpoints", "verify")
        if code != 0:
            run.fail("a checkpoint does not verify: {}".format(text))
        with open(run.journal, encoding="utf-8") as journal:
            resumes = journal.read().count("resum")
        if found != expected:
            differing = [step for step, line in expected[0].items() if found[0].get(step) != line]
            run.fail("differs from step {} on; taken again and different: {}".format(differing[:1], found[2][:5]))
    print("{} kills ({}), {} steps: losses, samples, draws and weights are those of the unbroken run".format(
        given.kills, ", ".join("{} {}".format(count, role) for role, count in done.items()), len(expected[0])))
    if not resumes:
        sys.exit("nothing was resumed")


if __name__ == "__main__":
    main()

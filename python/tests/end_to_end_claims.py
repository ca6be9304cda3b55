"""What the program claims about a training, against what the script wrote beside itself: steps, losses, evaluations, the best
value, skipped batches, saved files, and where it resumed after it was killed; and what it claims about a card, against what a
library that plays NVML says.

Run by an interpreter with PyTorch: `python python/tests/end_to_end_claims.py [CASE ...]`; all cases by default. Those of timm,
Keras, Ultralytics and TRL need these packages. The program is `target/debug/downshift`, or the one that DOWNSHIFT_PROGRAM names;
the library is `examples/libfake_nvml.so` beside it, or the one that DOWNSHIFT_FAKE_NVML names.
"""

import contextlib
import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile

from program import PROGRAM

HERE = os.path.dirname(os.path.abspath(__file__))
BESIDE = os.path.join(os.path.dirname(PROGRAM), "examples", "libfake_nvml.so")
FAKE_NVML = os.environ.get("DOWNSHIFT_FAKE_NVML", BESIDE)
LIMIT_SECONDS = 600
RUN_FILE = """\
name: claims
task: command
command: [{python}, {script}, '--truth={{run_dir}}/truth', '--out={{run_dir}}/out', {options}]
watch: {{ autopilot: false }}
"""
RESUME = "checkpoints: {{ match: '{{run_dir}}/out/{}' }}\nresume: {{ arguments: ['--resume={{checkpoint}}'] }}\n"


class Case:
    """A training: its script and options, the files from which it resumes, whether it tells losses and steps, and its card."""

    def __init__(self, script, options, files=None, has_losses=True, has_steps=True, apart=0, card=None):
        self.script, self.options, self.has_losses, self.has_steps = script, options, has_losses, has_steps
        self.apart, self.card = apart, card
        self.resume = RESUME.format(files) if files else ""


def loop(rate, steps, die, card=None):
    card_options = ["--holds=libnvml.held"] if card else []
    return Case("loop.py", ["--nan", "--rate=" + rate, "--steps=" + steps, "--die=" + die, *card_options], "ckpt_*.pt", card=card)


# The answers of the card, by call: a value or an error code. It does not report its power (NVML_ERROR_NOT_SUPPORTED).
CARD = {
    "nvmlDeviceGetName": [{"value": "A played card"}],
    "nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 25769803776, "used": 7516192768}}],
    "nvmlDeviceGetTemperature": [{"value": 71}],
    "nvmlDeviceGetUtilizationRates": [{"value": 33}],
    "nvmlDeviceGetPowerUsage": [{"code": 3}],
}
# The readings that are true of it, as they are stored. What the script holds comes on top of what others use.
HELD = 3221225472
READINGS = {
    "name": "A played card",
    "vram_total_bytes": {"is": 25769803776},
    "vram_used_bytes": {"is": 7516192768 + HELD},
    "vram_worker_bytes": {"is": HELD},
    "temperature_c": {"is": 71.0},
    "utilisation": {"is": 0.33},
    "power_w": {"not": "not supported"},
}


# Keras and Ultralytics print neither a step nor a loss of a step that is read.
CASES = {
    "loop-3": loop("3", "60", "35"),
    "loop-50": loop("50", "300", "155"),
    "loop-1000": loop("1000", "2000", "999"),
    "card": loop("20", "120", "65", CARD),
    "timm": Case("timm_train.py", ["--epochs=6", "--die=28"], "checkpoint-*.pth.tar", apart=2),
    "keras": Case("keras_train.py", ["--epochs=6", "--die=40"], "epoch-*.keras", has_losses=False, has_steps=False),
    "yolo": Case("yolo_train.py", ["--epochs=4", "--die=10"], "run/weights/last.pt", has_losses=False, has_steps=False),
    "trl": Case("trl_train.py", ["--epochs=4", "--die=30"]),
    "lightning": Case("lightning_train.py", ["--epochs=6", "--die=21"]),
}


class Truth:
    """The lines that a script wrote."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.lines = [json.loads(line) for line in file]
        begins = [index for index, line in enumerate(self.lines) if "begin" in line]
        self.last = self.lines[begins[-1] :]
        self.processes = len(begins)

    def before_last(self):
        return self.lines[: len(self.lines) - len(self.last)]

    def of(self, key, lines=None):
        return [line for line in (self.lines if lines is None else lines) if key in line]

    def losses(self):
        """Returns the losses of each step, of all processes."""
        found = {}
        for line in self.of("step"):
            found.setdefault(line["step"], []).append(line["loss"])
        return found


def is_near(claimed, true):
    """Compares a value with one that may have been printed with four digits."""
    return true is not None and claimed is not None and math.isclose(claimed, true, rel_tol=2e-3, abs_tol=2e-6)


class Run:
    """A run of the program to its end."""

    def __init__(self, folder, case):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment.update(
            DOWNSHIFT_RUNS_DIR=os.path.join(folder, "runs"), XDG_RUNTIME_DIR=folder, HOME=folder, OMP_NUM_THREADS="1",
            HF_HUB_OFFLINE="1", YOLO_CONFIG_DIR=folder, YOLO_OFFLINE="true",
        )  # fmt: skip
        script = os.path.join(HERE, "scripts", "claims", case.script)
        options = ", ".join(json.dumps(option) for option in case.options)
        with open(os.path.join(folder, "run.yaml"), "w", encoding="utf-8") as file:
            file.write(RUN_FILE.format(python=sys.executable, script=script, options=options) + case.resume)
        if case.card:
            library = os.path.join(folder, "libnvml.so")
            shutil.copy(FAKE_NVML, library)
            with open(os.path.join(folder, "libnvml.json"), "w", encoding="utf-8") as file:
                json.dump(case.card, file)
            self.environment["DOWNSHIFT_NVML_PATH"] = library
        self.said = self.call("run", "run.yaml", "--headless", "--trust", "--device", "cuda:0" if case.card else "cpu")
        self.status = json.loads(self.call("status", "--format", "json"))
        self.rows = [json.loads(line) for line in self.call("export").splitlines()]
        self.checkpoints = self.call("checkpoints", "list")
        self.truth = Truth(os.path.join(self.status["run_dir"], "truth"))

    def call(self, *words):
        done = subprocess.run(
            [PROGRAM, *words], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        return done.stdout


def check_end(run, case):
    """Finished, killed once, and at the last step."""
    if (run.status["state"] == "finished") != bool(run.truth.of("end", run.truth.last)):
        yield "state {}, but the script {} its end".format(run.status["state"], "wrote" if run.truth.of("end") else "did not reach")
    if run.status["attempts"] != run.truth.processes:
        yield "{} attempts, but {} processes".format(run.status["attempts"], run.truth.processes)
    true = max(run.truth.losses(), default=None)
    if case.has_steps and run.status["step"] != true:
        yield "step {}, but the script took {}".format(run.status["step"], true)


def check_losses(run, case):
    """Each loss of the curve is one of its step."""
    true = run.truth.losses()
    rows = [row for row in run.rows if row["loss"] is not None]
    for row in rows:
        # A loss that is printed without its step may be read just before or after the step is counted.
        around = range(row["step"] - case.apart, row["step"] + case.apart + 1)
        if not any(is_near(row["loss"], loss) for step in around for loss in true.get(step, [])):
            yield "loss {} at step {}, but {}".format(row["loss"], row["step"], true.get(row["step"]))
    if case.has_losses and len({row["step"] for row in rows}) < len(true) // 2:
        yield "{} steps have a loss, of {}".format(len(rows), len(true))


def check_evaluations(run, case):
    """The evaluation shown is the last one, and the best is the best."""
    true = run.truth.of("evaluated")
    claimed = run.status.get("eval") or {}
    for key, name in (("loss", "eval_loss"), ("accuracy", "accuracy")):
        if claimed.get(key) is not None and true and not is_near(claimed[key], true[-1][name]):
            yield "{} {} of the evaluation, but {}".format(key, claimed[key], true[-1][name])
    if case.has_steps and claimed and true and claimed["step"] != true[-1]["evaluated"]:
        yield "evaluated at step {}, but at {}".format(claimed["step"], true[-1]["evaluated"])
    best = run.status.get("best") or {}
    losses = [line["eval_loss"] for line in true if line["eval_loss"] is not None]
    if best.get("metric") == "loss" and losses and not is_near(best["value"], min(losses)):
        yield "best loss {}, but {}".format(best["value"], min(losses))


def check_skips(run, case):
    """Skipped batches are counted, or unknown."""
    true, claimed = len(run.truth.of("skipped")), run.status["skipped"]
    if claimed is not None and claimed != true:
        yield "{} skipped, but {}".format(claimed, true)


def check_resume(run, case):
    """The step that a resume names is that of the file which was loaded."""
    for line in run.truth.of("loaded"):
        saved = [line for line in run.truth.before_last() if "saved" in line]
        if saved and saved[-1]["saved"] != line["loaded"] and os.path.dirname(saved[-1]["saved"]) == os.path.dirname(line["loaded"]):
            yield "loaded {}, but {} is newer".format(line["loaded"], saved[-1]["saved"])
        if case.has_steps and "resumed at step {}".format(line["at"]) not in re.sub(r"(?<=\d)\s(?=\d)", "", run.said):
            found = [text for text in run.said.splitlines() if "resum" in text]
            yield "loaded {} of step {}, but: {}".format(line["loaded"], line["at"], " / ".join(found))
    if run.truth.processes > 1 and not run.truth.of("loaded"):
        if "resumed at step" in run.said:
            yield "a resume is claimed, but nothing was loaded"


def check_files(run, case):
    """A listed checkpoint has the step at which it was saved."""
    saved = {os.path.realpath(line["saved"]): line["at"] for line in run.truth.of("saved")}
    for text in run.checkpoints.splitlines():
        found = re.match(r"step +([\d\s]*\d)  ", text)
        path = os.path.realpath(text.split()[-1]) if found else ""
        step = int(re.sub(r"\s", "", found[1])) if found else None
        if case.has_steps and path in saved and step != saved[path]:
            yield "{} is listed with step {}, but was saved at {}".format(path, step, saved[path])


def check_card(run, case):
    """A reading is what the card said, or unknown; a rung's peak is what the script held."""
    if not case.card:
        return
    with contextlib.closing(sqlite3.connect(os.path.join(run.status["run_dir"], "run.db"))) as store:
        readings = [json.loads(text)["gpu"]["Ok"] for (text,) in store.execute("SELECT reading FROM samples")]
    # A worker that starts, or has ended, holds nothing.
    holding = [reading for reading in readings if "is" in reading["vram_worker_bytes"]]
    if not holding:
        yield "none of {} readings has the memory of the script".format(len(readings))
    for reading in holding:
        for name, true in READINGS.items():
            if reading[name] != true:
                yield "{} {}, but {}".format(name, reading[name], true)
    peak = run.status["rungs"][0]["vram_bytes"]
    if peak != HELD:
        yield "a peak of {}, but the script held {}".format(peak, HELD)


CHECKS = [check_end, check_losses, check_evaluations, check_skips, check_resume, check_files, check_card]


def main(names):
    failed = False
    for name in names or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory(prefix="dsclaims-") as folder:
            run = Run(folder, case)
            wrong = [found for check in CHECKS for found in check(run, case)]
            counts = "{} steps, {} evaluations, {} skips, {} resumes".format(
                len(run.truth.losses()), len(run.truth.of("evaluated")), len(run.truth.of("skipped")), len(run.truth.of("loaded"))
            )
            print("{}: {}".format(name, counts if not wrong else "NOT TRUE of {}".format(counts)), flush=True)
            for text in wrong[:8]:
                print("   " + text, flush=True)
            if wrong:
                failed = True
                print("   " + "\n   ".join(run.said.splitlines()[-30:]), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])

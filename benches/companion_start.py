"""Measures how long a shift of a PyTorch training takes: `python benches/companion_start.py DOWNSHIFT [ROUNDS]`.

From the confirmed preview to the end of the first step on the next rung, with a standby that the preview started and
without one, beside the bare start of the same script. The script imports torch and transformers, and trains a small GPT-2 in
a plain loop with four lines of downshift. Each round takes all three, so other work on the machine meets them alike.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPT = """
import os, sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel
import downshift

torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, n_positions=64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = [torch.randint(0, 256, (64,)) for _ in range(512)]
run = downshift.attach(model, optimizer)
begin = run.step_number
for batch in run.batches(data, epochs=100000, batch_size=8):
    run.step(model(input_ids=batch, labels=batch).loss)
    if run.step_number == begin + 1:
        with open(sys.argv[1], "a") as file:
            file.write("{}\\n".format(time.time()))
        if "--once" in sys.argv:
            break
"""

RUN = """
name: start
task: command
command: [{python}, train.py, first-steps]
directory: {folder}
environment: {{ MARK: "0" }}
standby: {standby}
ladder:
  - {{ name: one, relieves: [memory], set: {{ environment.MARK: "1" }} }}
"""
PREVIEW_SECONDS = 12
LIMIT_SECONDS = 120


def main():
    program, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    found = {"bare start": [], "without standby": [], "with standby": []}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        with Training(program, folder, "false") as plain, Training(program, folder, "true") as ahead:
            for _ in range(rounds):
                found["bare start"].append(start_bare(folder))
                found["without standby"].append(plain.shift())
                found["with standby"].append(ahead.shift())
    print("{} rounds, seconds to the first step".format(rounds))
    for name, seconds in found.items():
        worst = max(seconds)
        print("{:16} median {:5.2f}  least {:5.2f}  most {:5.2f}".format(name, statistics.median(seconds), min(seconds), worst))


def start_bare(folder):
    package = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "companion")
    place = os.path.join(folder, "bare")
    begun = time.time()
    command = [sys.executable, "train.py", place, "--once"]
    subprocess.run(command, cwd=folder, env=dict(os.environ, PYTHONPATH=package), check=True)
    with open(place, encoding="utf-8") as file:
        return float(file.readlines()[-1]) - begun


class Training:
    """A run in the background."""

    def __init__(self, program, folder, standby):
        self.folder = os.path.join(folder, standby)
        os.mkdir(self.folder)
        os.symlink(os.path.join(folder, "train.py"), os.path.join(self.folder, "train.py"))
        with open(os.path.join(self.folder, "run.yaml"), "w", encoding="utf-8") as file:
            file.write(RUN.format(python=sys.executable, folder=self.folder, standby=standby))
        self.program, self.standby = program, standby
        self.environment = dict(os.environ, DOWNSHIFT_RUNS_DIR=os.path.join(self.folder, "runs"))
        self.rung = 0

    def __enter__(self):
        words = [self.program, "run", "run.yaml", "--headless", "--trust", "--device", "cpu", "--another"]
        with open(os.path.join(self.folder, "out.txt"), "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=out, stderr=out)
        self.wait(1)
        runs = os.path.join(self.folder, "runs")
        (name,) = [name for name in os.listdir(runs) if os.path.isdir(os.path.join(runs, name))]
        with open(os.path.join(runs, name, "keeper.lock"), encoding="utf-8") as file:
            self.socket = json.load(file)["socket"]
        return self

    def __exit__(self, *error):
        subprocess.run([self.program, "stop"], cwd=self.folder, env=self.environment, check=False, stdout=subprocess.DEVNULL)
        self.process.wait(60)

    def shift(self):
        """Opens the preview, reads it, confirms it. Returns the seconds until the first step."""
        time.sleep(2)
        steps = len(self.first_steps())
        self.rung = 1 - self.rung
        name = ("full", "one")[self.rung]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
            keeper.connect(self.socket)
            keeper.sendall(json.dumps({"request": "stand_by", "rung": name}).encode() + b"\n")
            time.sleep(PREVIEW_SECONDS if self.standby == "true" else 0)
            begun = time.time()
            keeper.sendall(json.dumps({"request": "shift", "to": {"rung": name}}).encode() + b"\n")
            self.wait(steps + 1)
        return self.first_steps()[-1] - begun

    def wait(self, count):
        limit = time.monotonic() + LIMIT_SECONDS
        while len(self.first_steps()) < count:
            if time.monotonic() > limit:
                with open(os.path.join(self.folder, "out.txt"), encoding="utf-8") as file:
                    sys.exit("no step in {} s:\n{}".format(LIMIT_SECONDS, file.read()[-4000:]))
            time.sleep(0.02)

    def first_steps(self):
        try:
            with open(os.path.join(self.folder, "first-steps"), encoding="utf-8") as file:
                return [float(line) for line in file.read().splitlines()]
        except FileNotFoundError:
            return []


if __name__ == "__main__":
    main()

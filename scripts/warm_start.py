#!/usr/bin/env python3
"""Measures a warm start on a GPU, without one: warm_start.py [PROGRAM]   (target/release/downshift)

On the soft card (examples/soft_card), which skips every kernel: the program does all of its work, and the card none. After
`prepare`, prints the time from the start of `run` to the end of step 1, for each run file as median and slowest of five.
"""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from step_costs import ROOT, link_card

PROGRAM = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/downshift").resolve()
CONFIGS = ("digits", "text")
STARTS = 5
SHORT = ["--set", "training.steps=1", "--set", "evaluation.every=1000 steps"]


def call(folder, *words):
    variables = {
        "LD_LIBRARY_PATH": folder,
        "CUDA_PATH": ROOT / "examples/soft_card",
        "XDG_CACHE_HOME": folder / "cache",
        "XDG_STATE_HOME": folder / "state",
        "XDG_CONFIG_HOME": folder / "config",
        "DOWNSHIFT_RUNS_DIR": folder / "runs",
        "SOFT_CARD_SKIP": "1",
    }
    variables = {name: str(value) for name, value in variables.items()}
    done = subprocess.run([PROGRAM, *words], env=os.environ | variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def start(folder, config):
    """Returns the seconds from the start of the program to the end of step 1."""
    begin = time.time()
    call(folder, "run", config, "--headless", "--device", "cuda", *SHORT)
    newest = max((folder / "runs").iterdir(), key=lambda run: run.stat().st_ctime)
    with sqlite3.connect(newest / "run.db") as store:
        (ended_ms,) = store.execute("SELECT time_ms FROM steps WHERE step = 1").fetchone()
    return ended_ms / 1000 - begin


print("| run file | median | slowest |\n|---|---:|---:|")
with tempfile.TemporaryDirectory() as scratch:
    place = Path(scratch)
    link_card(place)
    for name in CONFIGS:
        call(place, "prepare", name, "--device", "cuda")
    for name in CONFIGS:
        times = [start(place, name) for _ in range(STARTS)]
        print(f"| `{name}` | {statistics.median(times):.2f} s | {max(times):.2f} s |", flush=True)

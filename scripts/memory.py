#!/usr/bin/env python3
"""Predicted beside measured memory for a list of configurations, as a Markdown table.

usage: scripts/memory.py [PROGRAM [DEVICE]]   (target/release/downshift, cpu)

Each row is `downshift plan CONFIG --set ... --rung full --measure 3 --format json`. Ends with 1 where a
row is further off than 15 %, or fewer than six took 500 MB or more.
"""

import json
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "target/release/downshift"
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
# Largest error of a prediction, in per cent.
MOST_OFF = 15
# At least LARGE rows must take AT_LEAST bytes: below that the program itself is too large a share.
LARGE, AT_LEAST = 6, 500_000_000
WIDE = ["model.width=512", "model.layers=8", "model.heads=8"]
RECOMPUTE = "training.gradient_checkpointing=true"
ROWS = [
    ("lm 512 × 8, 8 × 256", "text", [*WIDE, "model.sequence=256", "training.micro_batch=8"]),
    ("the same, gradient checkpointing", "text", [*WIDE, "model.sequence=256", "training.micro_batch=8", RECOMPUTE]),
    ("lm 512 × 8, 2 × (8 × 128)", "text", [*WIDE, "training.micro_batch=8", "training.accumulation=2"]),
    ("lm 768 × 10, 1 × 128", "text",
     ["model.width=768", "model.layers=10", "model.heads=12", "training.micro_batch=1"]),
    ("lora, 128 × 128", "lora", ["training.micro_batch=128"]),
    ("vision 192 × 6, 1400", "digits", ["model.channels=192", "model.layers=6", "training.micro_batch=1400"]),
    ("the same, gradient checkpointing", "digits",
     ["model.channels=192", "model.layers=6", "training.micro_batch=1400", RECOMPUTE]),
]


def row(name, config, knobs):
    command = [PROGRAM, "plan", config, "--device", DEVICE, "--rung", "full", "--measure", "3", "--format", "json"]
    for knob in knobs:
        command += ["--set", knob]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rung = json.loads(out)["rungs"][0]
    foreseen, measured = rung["foreseen"], rung["measured"]["peak_bytes"]
    mib = [f"{foreseen[part] / 2**20:.0f}" for part in ("weights", "optimizer", "gradients", "activations", "logits")]
    off = 100 * (foreseen["training"] / measured - 1)
    print(f"| {name} | {' | '.join(mib)} | {foreseen['training'] / 2**20:.0f} | {measured / 2**20:.0f} | {off:+.1f} % |")
    sys.stdout.flush()
    return off, measured


print("| model, micro-batch | weights | moments | gradients | activations | logits | **predicted** | **measured** | off |")
print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
seen = [row(*entry) for entry in ROWS]
off = [entry[0] for entry, (off, _) in zip(ROWS, seen) if abs(off) > MOST_OFF]
if off:
    sys.exit(f"more than {MOST_OFF} % off: {'; '.join(off)}")
large = sum(measured >= AT_LEAST for _, measured in seen)
if large < LARGE:
    sys.exit(f"only {large} rows took {AT_LEAST / 1e6:.0f} MB or more, and {LARGE} are wanted")

#!/usr/bin/env python3
"""Counts the work of a training step on a GPU, without one: step_costs.py [CASE...]

The soft card (examples/soft_card) skips every kernel and records the driver's calls, so a model of any size takes its
steps. The difference between a run of 3 steps and one of 5 is the work of two steps. Kernels are those of
`training.autotune: later`, chosen without tuning, and no gradient is large enough to be clipped. Prints a table of each case, fused and unfused:

- launches, copies between host and device, and waits of the host, per step
- bytes: those of all buffers that the kernels of a step are given
- least: the bytes that must be moved at least, for a transformer. Per parameter: weights read forward and backward,
  gradient written and read, and weights, master weights and two moments read and written. Per token and layer: 16 times
  the width of activations written and read, and as much for their gradients. Logits and attention scores need none.
- memory: the peak of the pages taken
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
FEW, MORE = 3, 5
GPT2 = {
    "model.layers": 12,
    "model.heads": 12,
    "model.width": 768,
    "model.sequence": 1024,
    "training.micro_batch": 8,
    "training.precision": "bf16",
}
# Name: run file, changes, and of a transformer: layers, width, tokens per step, bytes of a number.
CASES = {
    "digits": ("digits", {}, None),
    "text": ("text", {}, (4, 128, 8 * 64, 4)),
    "GPT-2 124M, bf16, 8 × 1024": ("text", GPT2, (12, 768, 8 * 1024, 2)),
}
VOCABULARY = 50_257


def write_tokenizer(path):
    words = sorted(set(re.findall(r"\w+", (ROOT / "crates/trainer/assets/persuasion.txt").read_text())))
    names = ["?", *words] + [f"no-word-{number}" for number in range(VOCABULARY)]
    model = {"type": "WordLevel", "vocab": {name: number for number, name in enumerate(names[:VOCABULARY])}, "unk_token": "?"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    path.write_text(json.dumps(tokenizer))


def link_card(folder):
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / name).symlink_to(BUILT / "examples/libsoft_card_driver.so")
    (folder / "libnvrtc.so").symlink_to(BUILT / "examples/libsoft_card_nvrtc.so")


def train(folder, file, changes, steps):
    """Trains and returns the driver's calls and the parameters of the model."""
    trace = folder / "trace"
    trace.unlink(missing_ok=True)
    variables = {
        "LD_LIBRARY_PATH": folder,
        "CUDA_PATH": ROOT / "examples/soft_card",
        "XDG_CACHE_HOME": folder / "cache",
        "XDG_STATE_HOME": folder / "state",
        "SOFT_CARD_CAPABILITY": "8.0",
        "SOFT_CARD_MEMORY_MIB": "81920",
        "SOFT_CARD_SKIP": "1",
        "SOFT_CARD_TRACE": trace,
    }
    changes = {"training.autotune": "later", "training.steps": steps, "checkpoint.every": "never"} | changes
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    command = [BUILT / "downshift", "run", file, "--headless", "--device", "cuda", "--runs-dir", folder / "runs", *words]
    done = subprocess.run(command, env=os.environ | {k: str(v) for k, v in variables.items()}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"step_costs: {file} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in trace.read_text().splitlines()]


def count(calls):
    """Returns the launches, the copies, the waits, the bytes of all buffers, and the peak of allocated bytes."""
    launches = copies = waits = moved = now = peak = 0
    for call in calls:
        kind, values = ("wait", {}) if call == "wait" else next(iter(call.items()))
        if kind == "launch":
            launches += 1
            moved += sum(values["buffers"])
        elif kind == "copy":
            copies += values["direction"] != "within"
        elif kind == "wait":
            waits += 1
        elif kind in ("allocate", "free"):
            now += values["bytes"] if kind == "allocate" else -values["bytes"]
            peak = max(peak, now)
    return launches, copies, waits, moved, peak


def least_bytes(shape, parameters):
    layers, width, tokens, size = shape
    masters = 0 if size == 4 else 4
    per_parameter = 2 * size + 2 * size + 2 * (size + masters + 8)
    return per_parameter * parameters + 2 * 2 * 16 * size * width * layers * tokens


def parameters_of(file, changes):
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    plan = subprocess.run([BUILT / "downshift", "plan", file, "--device", "cpu", "--rung", "full", "--format", "json", *words], capture_output=True, text=True, check=True)
    return json.loads(plan.stdout)["rungs"][0]["foreseen"]["parameters"]


def main():
    examples = ["--example", "soft_card_driver", "--example", "soft_card_nvrtc"]
    subprocess.run(["cargo", "build", "--locked", "--quiet", "--bin", "downshift", *examples], cwd=ROOT, check=True)
    names = sys.argv[1:] or CASES
    print("| case | kernels | launches | copies | waits | bytes | least | memory |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name in names:
        file, changes, shape = CASES[name]
        with tempfile.TemporaryDirectory() as place:
            place = Path(place)
            link_card(place)
            if changes:
                write_tokenizer(place / "tokenizer.json")
                changes = changes | {"data.tokenizer": place / "tokenizer.json"}
            least = "–"
            if shape:
                in_f32 = {key: value for key, value in changes.items() if key != "training.precision"}
                least = f"{least_bytes(shape, parameters_of(file, in_f32)) / 1e6:.0f} MB"
            for fused in ("true", "false"):
                runs = [count(train(place, file, changes | {"training.fused_kernels": fused}, steps)) for steps in (FEW, MORE)]
                launches, copies, waits, moved = ((more - few) / (MORE - FEW) for few, more in zip(*(run[:4] for run in runs)))
                kernels = "fused" if fused == "true" else "one per operation"
                print(
                    f"| {name} | {kernels} | {launches:.0f} | {copies:.0f} | {waits:.0f} | {moved / 1e6:.0f} MB "
                    f"| {least} | {runs[1][4] / 2**20:.0f} MiB |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

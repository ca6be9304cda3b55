"""Records the output of the scripts beside this file, each with the truth that it wrote.

    python record.py OUT [NAME…]      (run by an interpreter that has the framework)

The environment variable SUFFIX is appended to the names: recordings named -4.57 come from transformers 4.57.
A recording on a terminal has one stream (`output`, 120 columns); one without has two (`stdout`, `stderr`).
"""

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
# name: script and arguments, on a terminal, files to keep (pattern: name in the recording)
RECORDINGS = {
    "hf": (["hf_trainer.py"], True, {}),
    "hf-nan": (["hf_trainer.py", "", "14"], True, {}),
    "hf-pipes": (["hf_trainer.py"], False, {}),
    "hf-tensorboard": (["hf_trainer.py", "tensorboard"], True, {"out/**/events.out.*": "events.out.tfevents.hf"}),
    "tqdm-iterated": (["tqdm_loops.py", "iterated"], True, {}),
    "tqdm-updated": (["tqdm_loops.py", "updated"], True, {}),
    "tqdm-described": (["tqdm_loops.py", "described"], True, {}),
    "tqdm-nested": (["tqdm_loops.py", "nested"], True, {}),
    "tqdm-nested-steps": (["tqdm_jobs.py", "nested"], True, {}),
    "tqdm-job": (["tqdm_jobs.py", "job"], True, {}),
    **{f"lines-{form}": (["epoch_lines.py", form], True, {}) for form in ["sized", "pairs", "every", "headed", "unnamed"]},
    **{form: (["printed_toolkits.py", form], True, {}) for form in [
        "espnet", "marian", "opennmt", "darknet", "monai", "gluon", "geometric", "spacy", "yolox"]},
    **{form: (["printed_forms.py", form], True, {}) for form in [
        "pytorch-tutorial", "pytorch-imagenet", "pytorch-dcgan", "pytorch-cifar", "pytorch-mnist", "open-clip", "torchvision",
        "timm", "epoch-batch", "mmengine", "mmengine-iterations", "litgpt", "speechbrain", "detectron2", "fastai", "stable-baselines3",
        "cleanrl", "keras-lines", "pytorch-quickstart", "modded-nanogpt", "maxtext", "notebook-table", "comma-rows", "ultralytics-tqdm"]},
    **{form: (["boosted.py", form], True, {}) for form in ["xgboost", "lightgbm", "catboost"]},
    "lightning-tqdm": (["lightning_fit.py", "tqdm", "none"], True, {}),
    "lightning-rich": (["lightning_fit.py", "rich", "none"], True, {}),
    "lightning-files": (["lightning_fit.py", "tqdm", "loggers"], True,
                        {"csv/**/metrics.csv": "metrics.csv", "board/**/events.out.*": "events.out.tfevents.lightning"}),
    "keras": (["keras_fit.py"], True, {"log.csv": "log.csv"}),
    "keras-pipes": (["keras_fit.py"], False, {}),
    "tensorboard": (["tensorboard_events.py"], True, {"board/events.out.*": "events.out.tfevents.torch"}),
    "wandb": (["wandb_offline.py"], True, {"wandb/offline-run-*/*.wandb": "run.wandb"}),
    "trackio": (["trackio_log.py"], True, {"trackio/*.db": "tiny.db"}),
}
PACKAGES = ["transformers", "tqdm", "torch", "accelerate", "lightning", "rich", "keras", "tensorboard", "wandb", "trackio",
            "xgboost", "lightgbm", "catboost"]


def on_terminal(command, folder, environment):
    child, master = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, environment)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    output = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    _, status = os.waitpid(child, 0)
    return {"output": bytes(output)}, status


def on_pipes(command, folder, environment):
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    return {"stdout": done.stdout, "stderr": done.stderr}, done.returncode


def installed():
    for package in PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            pass


def record(name, suffix, out):
    words, terminal, files = RECORDINGS[name]
    kept = out / (name + suffix)
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "TRUTH": str(kept / "truth.jsonl"), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(HERE),
            "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore",
            "WANDB_MODE": "offline", "WANDB_SILENT": "true",
        }
        command = [sys.executable, str(HERE / words[0]), *words[1:]]
        streams, status = (on_terminal if terminal else on_pipes)(command, folder, environment)
        # Where files are the point, the output shows the same steps with fewer digits.
        for stream, output in streams.items() if not files or name == "keras" else ():
            (kept / stream).write_bytes(output)
        for pattern, target in files.items():
            for found in Path(folder).glob(pattern):
                shutil.copy(found, kept / target)
    (kept / "versions").write_text("\n".join(list(installed()) or [f"python {sys.version.split()[0]}"]) + "\n")
    print(name + suffix, "failed" if status else "recorded", flush=True)


if __name__ == "__main__":
    suffix = os.environ.get("SUFFIX", "")
    for name in sys.argv[2:] or RECORDINGS:
        record(name, suffix, Path(sys.argv[1]).resolve())

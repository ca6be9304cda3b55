"""Learns a picture, as in guide (c): a progress bar, sample pictures, checkpoints, and a save on SIGUSR1."""

import argparse
import pathlib
import signal
import struct
import time
import zlib

import torch
from tqdm.auto import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path, required=True)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--accumulation", type=int, default=4)
parser.add_argument("--resume", type=pathlib.Path)
arguments = parser.parse_args()
SIZE = 32

torch.manual_seed(0)
torch.set_num_threads(1)
rows, columns = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
places = torch.stack([rows, columns], -1).reshape(-1, 2)
wanted = torch.stack([(rows**2 + columns**2 < 0.5).float(), (rows > 0).float(), columns.abs()], -1).reshape(-1, 3)
model = torch.nn.Sequential(torch.nn.Linear(2, 48), torch.nn.Tanh(), torch.nn.Linear(48, 3), torch.nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
first = 0
if arguments.resume:
    state = torch.load(arguments.resume / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]


def write_sample(step):
    with torch.no_grad():
        pixels = (model(places) * 255).byte().reshape(SIZE, SIZE * 3)
    raw = b"".join(b"\0" + bytes(row.tolist()) for row in pixels)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts]
    folder = arguments.out / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"step-{step:04}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def save(step):
    folder = arguments.out / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    (folder / "complete").touch()  # written last: only then is the checkpoint complete


asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
bar = tqdm(total=arguments.steps, initial=first, desc="steps")
for step in range(first + 1, arguments.steps + 1):
    optimizer.zero_grad()
    for _ in range(arguments.accumulation):
        chosen = torch.randint(0, SIZE * SIZE, (arguments.batch,))
        loss = (model(places[chosen]) - wanted[chosen]).pow(2).mean() / arguments.accumulation
        loss.backward()
    optimizer.step()
    time.sleep(0.03)
    bar.update(1)
    bar.set_postfix(avr_loss=loss.item() * arguments.accumulation, lr=5e-3)
    if step % 50 == 0 or asked:
        asked.clear()
        save(step)
        write_sample(step)
bar.close()

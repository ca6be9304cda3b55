"""A loop that finds its own checkpoint when it is told to resume."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--out", default=".")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(4, 1)
path = os.path.join(args.out, "last.pt")
begin = torch.load(path)["step"] if args.resume else 0
for step in range(begin + 1, 1001):
    if step % 50 == 0:
        torch.save({"model": model.state_dict(), "step": step}, path)

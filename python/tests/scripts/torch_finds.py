"""A plain torch loop that trains on from the newest checkpoint in its folder. It prints neither steps nor losses."""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
arguments = parser.parse_args()
torch.set_num_threads(1)
os.makedirs(arguments.out, exist_ok=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
first = 0
saved = sorted(int(name[5:-3]) for name in os.listdir(arguments.out) if name.startswith("step_"))
if saved:
    found = torch.load(os.path.join(arguments.out, "step_{}.pt".format(saved[-1])), weights_only=False)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    first = found["step"]
for step in range(first + 1, 3001):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if step in (20, 40, 60):
        part = os.path.join(arguments.out, "part")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
        os.rename(part, os.path.join(arguments.out, "step_{}.pt".format(step)))
    time.sleep(0.05)

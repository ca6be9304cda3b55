"""A plain torch loop that sets its rate by hand, as nanoGPT does. It knows nothing of downshift.

`--lr=`, `--steps=` and `--rate=` (steps a second); `--warmup=` steps of the warm-up, none by default. `--constant` leaves the
rate as it is, `--restore=FILE` loads the optimizer's state from a file and saves it there at the end. `--nan` divides by
zero once a rate of 0.05 or more was reached.
"""

import os
import sys
import time

import torch

torch.set_num_threads(1)
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
rate, steps, warmup = float(given.get("lr", 0.1)), int(given.get("steps", 60)), int(given.get("warmup", 0))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
if os.path.exists(given.get("restore", "")):
    optimizer.load_state_dict(torch.load(given["restore"]))


def rate_at(step):
    return rate * (step + 1) / (warmup + 1) if step < warmup else rate


for step in range(steps):
    time.sleep(1.0 / float(given["rate"]) if "rate" in given else 0.0)
    if "--constant" not in sys.argv:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
    loss = model(torch.randn(4, 8)).pow(2).mean()
    if "--nan" in sys.argv and step >= warmup and rate >= 0.05:
        loss = loss / 0.0 * 0.0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step {} loss {:.4f}".format(step + 1, loss.item()), flush=True)
if given.get("restore"):
    torch.save(optimizer.state_dict(), given["restore"])

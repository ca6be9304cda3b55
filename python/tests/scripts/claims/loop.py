"""A plain loop that drops a batch whose loss is not finite, evaluates and saves every 20 steps, and is killed once."""

import os
import sys
import time
import warnings

import torch

from truth import Truth

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
if "holds" in given:
    # The library that plays a card lists this process with 3 GiB of its memory.
    os.makedirs(given["holds"], exist_ok=True)
    with open(os.path.join(given["holds"], str(os.getpid())), "w", encoding="utf-8") as file:
        file.write("3221225472 0 listed")
torch.set_num_threads(1)
torch.manual_seed(3)
truth = Truth(given["truth"])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
held_out = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
begin = 0
if "resume" in given:
    kept = torch.load(given["resume"])
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    begin = kept["step"]
    truth.load(given["resume"], begin)
for step in range(begin + 1, int(given["steps"]) + 1):
    time.sleep(1.0 / float(given["rate"]))
    batch = torch.randn(16, 8)
    loss = model(batch).pow(2).mean() * (float("nan") if step % 10 == 0 and "--nan" in sys.argv else 1.0)
    if not torch.isfinite(loss):
        print("Warning: loss is nan at step {}, skipping batch".format(step), flush=True)
        truth.skip(step)
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    truth.update(step, loss.item())
    print("step {}/{} loss: {:.6f}".format(step, given["steps"], loss.item()), flush=True)
    if step % 20 == 9:
        with torch.no_grad():
            eval_loss = model(held_out).pow(2).mean().item()
        print("step {} val_loss: {:.6f}".format(step, eval_loss), flush=True)
        truth.evaluate(step, loss=eval_loss)
        path = "{}/ckpt_{}.pt".format(given["out"], step)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
        truth.save(path, step)
    truth.die_once(step, int(given.get("die", 0)))
truth.end()

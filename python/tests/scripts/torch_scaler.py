"""A plain torch loop with a GradScaler. Every eighth gradient is infinite, unless `--lr=` is below `--calm-below=`. It knows
nothing of downshift. With `--disabled`, the scaler does nothing. With `--save`, every fiftieth step writes `ckpt_STEP.pt`, from which `--resume=` continues."""

import sys
import time

import torch

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01, fused="--fused" in sys.argv)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=7, enabled="--disabled" not in sys.argv)
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
steps, pause = int(given.get("steps", 40)), 1.0 / float(given["rate"]) if "rate" in given else 0.0
is_calm = float(given.get("lr", 1.0)) < float(given.get("calm-below", 0.0))
left_out, begin = 0, 0
if "resume" in given:
    begin = int(given["resume"].rsplit("_", 1)[1][:-3])
    kept = torch.load(given["resume"])
    model.load_state_dict(kept["model"])
    scaler.load_state_dict(kept["scaler"])
for step in range(begin + 1, steps + 1):
    time.sleep(pause)
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    scaler.scale(loss).backward()
    if step % 8 == 0 and not is_calm and scaler.is_enabled():
        model.weight.grad[0, 0] = float("inf")
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    left_out += int(torch.equal(before, model.weight.detach()))
    scaler.update()
    if "--save" in sys.argv and step % 50 == 0:
        torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "ckpt_{}.pt".format(step))
    if "--print" in sys.argv and step % 10 == 0:
        print("step {} loss {:.4f}".format(step, loss.item()), flush=True)
print("LEFT OUT", left_out, flush=True)

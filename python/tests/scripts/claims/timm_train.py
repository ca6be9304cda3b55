"""Trains a small network of timm with its scheduler and its CheckpointSaver, and prints as its script does."""

import os
import sys

import timm
import timm.utils
import torch
from timm.scheduler import CosineLRScheduler

from truth import Truth

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
torch.set_num_threads(1)
torch.manual_seed(3)
truth = Truth(given["truth"])
out, epochs, batches = given["out"], int(given["epochs"]), 8
os.makedirs(out, exist_ok=True)
model = timm.create_model("test_resnet", num_classes=3, in_chans=3)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = CosineLRScheduler(optimizer, t_initial=epochs)
saver = timm.utils.CheckpointSaver(model, optimizer, checkpoint_dir=out, recovery_dir=out, decreasing=False, max_history=3)


def batch_of(count):
    labels = torch.randint(0, 3, (count,))
    pictures = 0.5 * torch.randn(count, 3, 32, 32)
    pictures[torch.arange(count), labels] += 1.0
    return pictures, labels


held_out = batch_of(48)
begin = 0
if "resume" in given:
    kept = torch.load(given["resume"], weights_only=False)
    model.load_state_dict(kept["state_dict"])
    optimizer.load_state_dict(kept["optimizer"])
    begin = kept["epoch"] + 1
    truth.load(given["resume"], begin * batches)
losses = timm.utils.AverageMeter()
for epoch in range(begin, epochs):
    model.train()
    losses.reset()
    for index in range(batches):
        pictures, labels = batch_of(8)
        loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step = epoch * batches + index + 1
        losses.update(loss.item(), len(labels))
        truth.update(step, loss.item())
        print(
            "Train: {} [{:>4d}/{} ({:>3.0f}%)]  Loss: {:.6f} ({:.4f})  LR: {:.3e}".format(
                epoch, index, batches, 100.0 * index / (batches - 1), losses.val, losses.avg, optimizer.param_groups[0]["lr"]
            ),
            flush=True,
        )
        truth.die_once(step, int(given.get("die", 0)))
    scheduler.step(epoch + 1)
    model.eval()
    with torch.no_grad():
        answers = model(held_out[0])
    eval_loss = torch.nn.functional.cross_entropy(answers, held_out[1]).item()
    accuracy = timm.utils.accuracy(answers, held_out[1])[0].item()
    print("Test: [{:>4d}/{}]  Loss: {:.6f} ({:.6f})  Acc@1: {:.3f} ({:.3f})".format(0, 0, eval_loss, eval_loss, accuracy, accuracy), flush=True)
    truth.evaluate((epoch + 1) * batches, loss=eval_loss, accuracy=accuracy / 100.0)
    saver.save_checkpoint(epoch, metric=accuracy)
    truth.save(os.path.join(out, "checkpoint-{}.pth.tar".format(epoch)), (epoch + 1) * batches)
truth.end()

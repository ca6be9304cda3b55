"""Loops with tqdm as people write them: a postfix or a description, iterated or updated, one bar an epoch or one in all."""

import sys
import time

import torch
from tqdm.auto import tqdm
from truth import Truth

truth = Truth()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = [torch.randn(4, 8) for _ in range(16)]


def step(batch):
    loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    return loss.item()


def evaluate():
    with torch.no_grad():
        for batch in tqdm(batches[:5], desc="eval", leave=False):
            model(batch)
            time.sleep(0.02)


def iterated():
    """A bar for each epoch; the postfix is set inside the body, so the bar still shows the step before."""
    count = 0
    for epoch in range(3):
        bar = tqdm(batches, desc=f"Epoch {epoch + 1}/3")
        for batch in bar:
            loss = step(batch)
            count += 1
            truth.write(count, loss=float(f"{loss:.4f}"))
            bar.set_postfix(loss=f"{loss:.4f}")
        evaluate()


def updated():
    """One bar over all steps, updated first, as kohya and diffusers do."""
    bar = tqdm(range(32), desc="steps")
    count = 0
    for _ in range(2):
        for batch in batches:
            loss = step(batch)
            count += 1
            bar.update(1)
            bar.set_postfix(avr_loss=loss, lr=0.05)
            truth.write(count, loss=float(tqdm.format_num(loss)), lr=0.05)
    bar.close()


def described():
    """The loss in the description, and a bar that restarts without saying which epoch it is."""
    count = 0
    for _ in range(2):
        bar = tqdm(batches)
        for batch in bar:
            loss = step(batch)
            count += 1
            truth.write(count, loss=float(f"{loss:.3f}"))
            bar.set_description(f"loss: {loss:.3f}")


def nested():
    """A bar of epochs above a bar of batches."""
    count = 0
    for _ in tqdm(range(2), desc="epochs"):
        bar = tqdm(batches, desc="train", leave=False)
        for batch in bar:
            loss = step(batch)
            count += 1
            truth.write(count, loss=float(f"{loss:.4f}"))
            bar.set_postfix(loss=f"{loss:.4f}")


{"iterated": iterated, "updated": updated, "described": described, "nested": nested}[sys.argv[1]]()

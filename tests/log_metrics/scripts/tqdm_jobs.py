"""Bars that are named unlike others: a count of epochs around a count that starts over, and a job called `test`."""

import random
import sys
import time

from tqdm import tqdm
from truth import Truth

truth = Truth()
random.seed(0)


def nested():
    """OneTrainer: bars called `epoch` and `step`, of which the inner one starts again."""
    count = 0
    for epoch in tqdm(range(3), desc="epoch"):
        bar = tqdm(range(6), desc="step", total=6, initial=0)
        for _ in bar:
            time.sleep(0.12)
            count += 1
            loss = random.random()
            bar.set_postfix({"loss": f"{loss:.4f}", "smooth loss": "0.5"})
            truth.write(count, loss=float(f"{loss:.4f}"), total_steps=18)


def job():
    """ai-toolkit: the job's name before the bar, rate and loss behind it."""
    bar = tqdm(total=12, desc="test", leave=True)
    for count in range(1, 13):
        time.sleep(0.12)
        loss = random.random()
        bar.set_postfix_str(f"lr: 1.0e-04 loss: {loss:.3e}")
        if count == 5:
            tqdm.write("# OOM during training step, skipping batch 1/3 #")
        bar.update(1)
        truth.write(count, loss=float(f"{loss:.3e}"), lr=1e-4)
    bar.close()


{"nested": nested, "job": job}[sys.argv[1]]()

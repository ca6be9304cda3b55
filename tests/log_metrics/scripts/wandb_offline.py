"""W&B in offline mode; long enough for records that cross the blocks of the file."""

import os
import random

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CONSOLE="off")
import wandb
from truth import Truth

truth = Truth()
random.seed(0)
run = wandb.init(project="tiny", settings=wandb.Settings(x_disable_stats=True, x_disable_meta=True, disable_git=True))
for step in range(1, 121):
    values = {"train/loss": random.random() * 4, "train/learning_rate": 1e-3 / step}
    if step == 50:
        values["train/loss"] = float("nan")
    if step == 51:
        values["train/loss"] = float("inf")
    own = {"loss": values["train/loss"], "lr": values["train/learning_rate"]}
    if step == 60:
        values["notes"] = "n" * 40_000
    if step % 25 == 0:
        values["eval/loss"] = own["eval_loss"] = random.random()
    run.log({**values, "train/global_step": 2 * step})  # as Hugging Face does: W&B counts its own calls
    truth.write(2 * step, **own)
run.finish()

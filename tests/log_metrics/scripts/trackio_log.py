"""Trackio, which keeps its runs in SQLite: an older run, then the one that counts."""

import os
import random

os.environ["TRACKIO_DIR"] = os.path.abspath("trackio")
import trackio
from truth import Truth

truth = Truth()
random.seed(0)
trackio.init(project="tiny", name="before")
for step in range(5):
    trackio.log({"loss": 100.0 + step}, step=step)
trackio.finish()
trackio.init(project="tiny", name="now")
for step in range(1, 31):
    loss = float("nan") if step == 9 else float("inf") if step == 10 else random.random() * 4
    trackio.log({"loss": loss, "learning_rate": 1e-3 / step, "note": "text"}, step=step)
    truth.write(step, loss=loss, lr=1e-3 / step)
trackio.finish()

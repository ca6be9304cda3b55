"""Writes what a training did into a file beside it, for a comparison with what the program claims."""

import json
import os
import signal


class Truth:
    """The record of a training: a line for each update, skipped batch, evaluation, saved and loaded file."""

    def __init__(self, path):
        self.path = path
        self.is_first = not os.path.exists(path)
        self.file = open(path, "a", encoding="utf-8")
        self.write(begin=True)

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def update(self, step, loss):
        self.write(step=step, loss=loss)

    def skip(self, step):
        self.write(skipped=step)

    def evaluate(self, step, loss=None, accuracy=None):
        self.write(evaluated=step, eval_loss=loss, accuracy=accuracy)

    def save(self, path, step):
        self.write(saved=os.path.abspath(path), at=step)

    def load(self, path, step):
        self.write(loaded=os.path.abspath(path), at=step)

    def die_once(self, step, at):
        """Kills the first process of the training at a step."""
        if self.is_first and step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self):
        self.write(end=True)

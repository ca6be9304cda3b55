"""A plain PyTorch loop that saves and resumes by itself, or leaves out a part of its state (`--forget`)."""

import argparse
import os
import random
import time

import torch
from torch import nn

SAMPLES = 96


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--out", required=True)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--resume")
    parser.add_argument("--forget", default="")
    return parser.parse_args()


def make_data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 16, generator=generator)
    return inputs, (inputs[:, :4].sum(1) + 0.3 * inputs[:, 5] ** 2).unsqueeze(1)


def order_of(epoch):
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(100 + epoch)).tolist()


class Training:
    """The state of the training."""

    def __init__(self):
        torch.manual_seed(0)
        random.seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.05), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.5)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.step, self.epoch, self.seen = 0, 0, 0

    def save(self, folder):
        os.makedirs(folder, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": torch.get_rng_state(),
            "position": (self.step, self.epoch, self.seen),
        }
        torch.save(state, os.path.join(folder, "partial.pt"))
        os.replace(os.path.join(folder, "partial.pt"), os.path.join(folder, "state.pt"))

    def load(self, folder, forget):
        state = torch.load(os.path.join(folder, "state.pt"))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.epoch, self.seen = state["position"]
        if forget == "scheduler":
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"]
        else:
            self.scheduler.load_state_dict(state["scheduler"])
        if forget == "order":
            self.epoch, self.seen = 0, 0
        if forget != "random":
            torch.set_rng_state(state["random"])

    def next_batch(self, size):
        if self.seen + size > SAMPLES:
            self.epoch, self.seen = self.epoch + 1, 0
        ids = order_of(self.epoch)[self.seen : self.seen + size]
        self.seen += size
        return ids


def main():
    arguments = parse()
    torch.set_num_threads(1)
    inputs, targets = make_data()
    training = Training()
    if arguments.resume:
        training.load(arguments.resume, arguments.forget)
    size = 8 if arguments.forget == "batch" else arguments.batch_size
    while training.step < 100000:
        ids = training.next_batch(size)
        loss = nn.functional.mse_loss(training.model(inputs[ids]), targets[ids])
        training.optimizer.zero_grad()
        loss.backward()
        rate = training.optimizer.param_groups[0]["lr"]
        training.optimizer.step()
        training.scheduler.step()
        training.step += 1
        print("step {} loss {:.6f} lr {:.6g}".format(training.step, loss.item(), rate), flush=True)
        if training.step % arguments.save_steps == 0:
            training.save(os.path.join(arguments.out, "checkpoint-{}".format(training.step)))
        # Slow enough for a kill to come between two checkpoints.
        time.sleep(0.03)


if __name__ == "__main__":
    main()

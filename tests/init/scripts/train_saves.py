"""A plain loop that saves and resumes by itself."""

import argparse
import os

import torch


def save(arguments, model, step):
    path = os.path.join(arguments.out, f"step_{step}.pt")
    torch.save({"model": model.state_dict(), "step": step}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--resume", default=None)
    arguments = parser.parse_args()
    model = torch.nn.Linear(4, 1)
    begin = torch.load(arguments.resume)["step"] if arguments.resume else 0
    for step in range(begin + 1, 1001):
        if step % 100 == 0:
            save(arguments, model, step)
            torch.save(model.state_dict(), f"{arguments.out}/last.pt")


if __name__ == "__main__":
    main()

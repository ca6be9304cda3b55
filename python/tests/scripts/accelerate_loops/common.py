"""What the loops beside this file share: a small model with dropout, data with random augmentation, and the truth at the end."""

import argparse
import hashlib
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

torch.set_num_threads(1)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, count):
        self.values = torch.randn(count, 16, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index] + 0.1 * torch.randn(16)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=70)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--save_every_n_steps", type=int, default=1000)
    parser.add_argument("--count", type=int, default=42)
    parser.add_argument("--pause", type=float, default=0.02)
    return parser


def build(args):
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loader = torch.utils.data.DataLoader(Pictures(args.count), batch_size=args.train_batch_size, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, loader, schedule)


def evaluate(accelerator, model, loader):
    """Evaluates on a loader of its own, and says how many samples it saw."""
    model.eval()
    with torch.no_grad():
        seen = sum(len(batch) for batch in loader if model(batch) is not None)
    model.train()
    with open("evaluations", "a") as file:
        file.write("{}\n".format(seen))


def train(accelerator, model, optimizer, schedule, batch, pause):
    """One batch. Returns its loss."""
    time.sleep(pause)
    with accelerator.accumulate(model):
        loss = model(batch).pow(2).mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    if accelerator.sync_gradients:
        # The truth: one line for each update, of whichever process.
        with open("updates", "a") as file:
            file.write("{}\n".format(int(next(iter(optimizer.state.values()))["step"])))
    return loss.detach()


def finish(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    print("WEIGHTS", digest.hexdigest()[:16], flush=True)


def save(accelerator, args, step, name):
    """Saves a state every few steps, as each of the trainers does beside its weights."""
    if step % args.save_every_n_steps == 0:
        accelerator.save_state(os.path.join(args.output_dir, name.format(step)))

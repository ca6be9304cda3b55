"""What the loops beside this file share: a small model with dropout, data with random augmentation, and the truth at the end."""

import argparse
import hashlib
import os
import random
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


class Buckets(torch.utils.data.Dataset):
    """Items are whole batches. At each new epoch the data set shuffles once more what the epochs before have left."""

    def __init__(self, count, batch_size):
        self.pictures, self.batch_size, self.epoch = Pictures(count), batch_size, 0
        self.order = list(range(count))
        self.shuffle()

    def shuffle(self):
        random.seed(9 + self.epoch)
        random.shuffle(self.order)

    def go_to(self, epoch):
        for self.epoch in range(self.epoch + 1, epoch + 1):
            self.shuffle()

    def __len__(self):
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, index):
        chosen = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return torch.stack([self.pictures[number] for number in chosen])


class Collate:
    """Tells the data set which epoch it is, behind the batch that it has made."""

    def __init__(self, epoch, dataset):
        self.epoch, self.dataset = epoch, dataset

    def __call__(self, items):
        self.dataset.go_to(self.epoch.value)
        return items[0]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=70)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--save_every_n_steps", type=int, default=1000)
    parser.add_argument("--count", type=int, default=42)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--buckets", action="store_true", help="a data set of whole batches, which shuffles itself")
    return parser


def build(args, epoch=None):
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    if args.buckets:
        dataset = Buckets(args.count, args.train_batch_size)
        loader = torch.utils.data.DataLoader(dataset, batch_size=1, shuffle=True, collate_fn=Collate(epoch, dataset))
    else:
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

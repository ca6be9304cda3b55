"""Three trainings of a few steps, one for each framework that resumes exactly. Each records what every update read.

They have all that a resume can forget: shuffling, dropout, random augmentation, draws between the steps and at the borders
of epochs, an average of the weights. Each runs in a process forked from one that has imported the framework.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import time

import numpy
import torch

SAMPLES, EPOCHS = 13, 3


class Record:
    """The samples of each update, by their hash, and the final weights."""

    def __init__(self, path):
        self.path = path
        self._samples, self.updates = [], []

    def read(self, batch):
        """Adds the samples of a batch."""
        self._samples += [hash_bytes(row.detach().numpy().tobytes()) for row in batch]

    def update(self, *_):
        """Ends the samples of an update."""
        self.updates.append(self._samples)
        self._samples = []

    def write(self, module):
        weights = hash_bytes(b"".join(value.numpy().tobytes() for value in module.state_dict().values()))
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"updates": self.updates, "weights": weights}, file)


def hash_bytes(data):
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Points(torch.utils.data.Dataset):
    """Samples that differ each time they are drawn, except for the first value, which names them."""

    def __init__(self, count=SAMPLES):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        point = 0.1 * torch.randn(4) + 0.01 * random.random() + 0.01 * float(numpy.random.rand())
        point[0] = index
        return point


class Network(torch.nn.Module):
    """A network with dropout and an average of its weights. As it is saved, it can kill a loader process."""

    def __init__(self, kills_loader=False):
        super().__init__()
        self.kills_loader = kills_loader
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
        self.register_buffer("average", torch.zeros(4))

    def loss(self, batch):
        return self.layers(batch / SAMPLES).pow(2).mean()

    def draw(self):
        """Changes the average by a draw from each stream."""
        drawn = torch.randn(4) + random.random() + float(numpy.random.rand())
        self.average.mul_(0.9).add_(self.layers[2].weight.detach()[0] + 0.01 * drawn)


    def get_extra_state(self):
        """Called where the state is taken."""
        if self.kills_loader and self.average.any():
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
            # The signal of its death interrupts this.
            time.sleep(60)
        return torch.zeros(1)

    def set_extra_state(self, state):
        pass


def seed():
    torch.set_num_threads(1)
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)


def train_loop(options):
    """A plain loop of `downshift.attach`."""
    import downshift
    from downshift_cockpit import saver

    # Each step is saved, also while the one before is written.
    saver.Saver.is_writing = lambda self: False
    seed()
    record, module = Record(options["record"]), Network(options.get("kills_loader"))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    optimizer.register_step_post_hook(record.update)
    run = downshift.attach(module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9))
    cut = dict(batch_size=options.get("batch", 4), accumulation=options.get("accumulation", 1))
    for batch in run.batches(Points(), epochs=EPOCHS, workers=options.get("workers", 0), **cut):
        record.read(batch)
        run.step(module.loss(batch))
        module.draw()
    record.write(module)


def train_transformers(options):
    """A training of the Hugging Face Trainer."""
    import transformers
    from downshift_cockpit import hf_checkpoint

    hf_checkpoint.KEPT = 1000
    seed()
    record = Record(options["record"])

    class Model(Network):
        def forward(self, point):
            if self.training:
                record.read(point)
            return {"loss": self.loss(point)}

    class Draws(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            module.draw()

    module = Model(options.get("kills_loader"))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    optimizer.register_step_post_hook(record.update)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    arguments = transformers.TrainingArguments(
        output_dir=options["folder"], per_device_train_batch_size=options.get("batch", 4), num_train_epochs=EPOCHS,
        gradient_accumulation_steps=options.get("accumulation", 1), max_steps=options.get("max_steps", -1),
        eval_strategy="epoch" if options.get("validation") else "no", report_to=[], use_cpu=True, disable_tqdm=True,
        logging_strategy="no", save_strategy="no", remove_unused_columns=False, prediction_loss_only=True,
        dataloader_num_workers=options.get("workers", 0),
    )  # fmt: skip
    transformers.Trainer(
        model=module, args=arguments, train_dataset=Points(), eval_dataset=Points(3), optimizers=(optimizer, schedule),
        data_collator=lambda points: {"point": torch.stack(points)}, callbacks=[Draws()],
    ).train()  # fmt: skip
    record.write(module)


def train_lightning(options):
    """A training of Lightning's Trainer."""
    import lightning.pytorch as pl
    from downshift_cockpit import lightning_checkpoint, lightning_epochs

    lightning_checkpoint.KEPT = 1000
    if options.get("saves_within_batch"):
        lightning_epochs.Epochs.end_now = lambda self: False
    if options.get("counts_no_epochs"):
        lightning_epochs.count_epochs = lambda checkpoint: None
    seed()
    record = Record(options["record"])

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network(options.get("kills_loader"))

        def training_step(self, batch, index):
            record.read(batch)
            return self.network.loss(batch)

        def validation_step(self, batch, index):
            self.log("val_loss", self.network.loss(batch))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            optimizer.register_step_post_hook(record.update)
            if options.get("plateau"):
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=0)
                return [optimizer], [{"scheduler": schedule, "monitor": "val_loss", "interval": "epoch"}]
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9), "interval": "step"}]

        def draw(self, *_):
            self.network.draw()

        on_train_batch_end = on_train_epoch_start = on_train_epoch_end = on_validation_epoch_end = on_train_end = draw

    module = Module()
    workers = options.get("workers", 0)
    loader = torch.utils.data.DataLoader(
        Points(), options.get("batch", 4), shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    validation = torch.utils.data.DataLoader(Points(3), 2) if options.get("validation") else None
    steps = options.get("max_steps", -1)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        max_epochs=EPOCHS if steps < 0 else -1, max_steps=steps, accumulate_grad_batches=options.get("accumulation", 1),
        limit_train_batches=options.get("limit", 1.0), val_check_interval=options.get("interval", 1.0),
        num_sanity_val_steps=0, reload_dataloaders_every_n_epochs=options.get("reload", 0),
    )  # fmt: skip
    trainer.fit(module, loader, validation)
    record.write(module)


TRAININGS = {"loop": train_loop, "transformers": train_transformers, "lightning": train_lightning}


def main(options):
    """Trains with one framework, in a process that has imported it."""
    if "file_bytes" in options:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_bytes"],) * 2)
    TRAININGS[options["framework"]](options)

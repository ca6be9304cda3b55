"""A training of Hugging Face or Lightning that logs each update: its step, its loss and the samples it read, all in full
precision, and at the end a hash of all weights. It knows nothing of downshift.

It has what a resume can forget: shuffling, dropout, random augmentation in loader processes, a schedule, an average of the
weights, and draws from all random streams between the steps.
"""

import argparse
import hashlib
import json
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("log")
parser.add_argument("--framework", choices=["transformers", "lightning"], required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--step-ms", type=float, default=0)
options = parser.parse_args()

import numpy
import torch

SAMPLES, BATCH, ACCUMULATION, WORKERS = 90, 4, 2, 2

torch.set_num_threads(1)
torch.manual_seed(7)
random.seed(7)
numpy.random.seed(7)


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        point = 0.1 * torch.randn(8) + 0.01 * random.random() + 0.01 * float(numpy.random.rand())
        point[0] = index
        return point


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.register_buffer("average", torch.zeros(8))

    def loss(self, batch):
        return self.layers(batch / SAMPLES).pow(2).mean()

    def draw(self):
        drawn = torch.randn(8) + random.random() + float(numpy.random.rand())
        self.average.mul_(0.9).add_(self.layers[2].weight.detach()[0] + 0.01 * drawn)


class Log:
    """The file of the updates."""

    def __init__(self):
        self.file = open(options.log, "a", encoding="utf-8")
        self.ids, self.losses = [], []

    def read(self, batch, loss):
        self.ids += [int(index) for index in batch[:, 0]]
        self.losses.append(loss.item().hex())

    def update(self, step):
        self.write({"step": step, "losses": self.losses, "ids": self.ids})
        self.ids, self.losses = [], []
        time.sleep(options.step_ms / 1e3)

    def write(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


log, network = Log(), Network()


def train_transformers():
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, point):
            loss = self.network.loss(point)
            log.read(point, loss)
            return {"loss": loss}

    class Steps(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            network.draw()
            log.update(state.global_step)

    arguments = transformers.TrainingArguments(
        output_dir=options.out, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATION,
        num_train_epochs=options.epochs, learning_rate=1e-3, lr_scheduler_type="cosine", report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", remove_unused_columns=False, dataloader_num_workers=WORKERS,
    )  # fmt: skip
    transformers.Trainer(
        model=Model(), args=arguments, train_dataset=Points(), callbacks=[Steps()],
        data_collator=lambda points: {"point": torch.stack(points)},
    ).train()  # fmt: skip


def train_lightning():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.logged = network, 0

        def training_step(self, batch, index):
            loss = self.network.loss(batch)
            log.read(batch, loss)
            return loss

        def on_train_start(self):
            self.logged = self.global_step

        def on_train_batch_end(self, *_):
            self.network.draw()
            if self.global_step > self.logged:
                self.logged = self.global_step
                log.update(self.logged)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    trainer = pl.Trainer(
        max_epochs=options.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, gradient_clip_val=1.0,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=ACCUMULATION,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Points(), BATCH, shuffle=True, num_workers=WORKERS))


{"transformers": train_transformers, "lightning": train_lightning}[options.framework]()
weights = b"".join(value.numpy().tobytes() for value in network.state_dict().values())
log.write({"weights": hashlib.sha256(weights).hexdigest()})

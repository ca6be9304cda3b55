"""A Lightning training with dropout, shuffling, random augmentation and loader processes. It knows nothing of downshift."""

import argparse
import hashlib
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--boring", action="store_true")
parser.add_argument("--val", action="store_true")
parser.add_argument("--writes", help="folder of its checkpoints and of its log")
parser.add_argument("--save-every", type=int, help="steps between its checkpoints, in place of epochs")
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--wait-at", default="", help="steps behind which it waits for 4 seconds")
parser.add_argument("--package", default="lightning.pytorch")
options = parser.parse_args()

import importlib

import numpy
import torch

torch.set_num_threads(1)
pl = importlib.import_module(options.package)
pl.seed_everything(3)


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        point = torch.full((32,), index / 80.0) + 0.1 * torch.randn(32)
        return point + 0.01 * random.random() + 0.01 * float(numpy.random.rand())


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        dropout = torch.nn.Dropout(options.dropout)
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 16), dropout, torch.nn.ReLU(), torch.nn.Linear(16, 2))
        self.average = torch.nn.Parameter(torch.zeros(2), requires_grad=False)

    def training_step(self, batch, index):
        return self.layers(batch).pow(2).mean()

    def validation_step(self, batch, index):
        self.log("val_loss", self.layers(batch).pow(2).mean())

    def on_train_batch_end(self, outputs, batch, index):
        self.average.mul_(0.9).add_(0.1 * self.layers[3].bias.detach() + 0.001 * torch.randn(2))
        if str(self.global_step) in options.wait_at.split(","):
            time.sleep(4)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=options.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


if options.boring:
    demos = importlib.import_module(options.package + ".demos.boring_classes")
    model, loader, validation = demos.BoringModel(), None, None
else:
    model = Model()
    loader = torch.utils.data.DataLoader(
        Points(), batch_size=options.batch, shuffle=True, num_workers=options.workers
    )
    validation = torch.utils.data.DataLoader(Points(), batch_size=16, num_workers=options.workers) if options.val else None
callbacks, logger = [], False
if options.writes:
    checkpoint = importlib.import_module(options.package + ".callbacks").ModelCheckpoint
    callbacks = [checkpoint(options.writes, save_last=True, every_n_train_steps=options.save_every)]
    logger = importlib.import_module(options.package + ".loggers").CSVLogger(options.writes)
    Model.on_train_start = lambda self: self.log("started", 1.0)
trainer = pl.Trainer(
    max_epochs=options.epochs, accelerator="cpu", logger=logger, enable_checkpointing=bool(callbacks), callbacks=callbacks,
    enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=options.accum, gradient_clip_val=1.0,
)  # fmt: skip
trainer.fit(model, loader, validation)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
print("WEIGHTS", digest.hexdigest()[:16], "STEP", trainer.global_step, flush=True)

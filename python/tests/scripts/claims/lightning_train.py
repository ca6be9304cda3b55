"""A Lightning training with a progress bar, a validation for each epoch and its own ModelCheckpoint."""

import sys

import lightning.pytorch as pl
import torch

from truth import Truth

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
torch.set_num_threads(1)
pl.seed_everything(3)
truth = Truth(given["truth"])
points = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.logged = 0

    def training_step(self, batch, index):
        loss = self.layers(batch).pow(2).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.layers(batch).pow(2).mean())

    def on_train_start(self):
        self.logged = self.global_step
        if self.global_step:
            truth.load("memory", self.global_step)

    def on_train_batch_end(self, outputs, batch, index):
        self.logged = self.global_step
        truth.update(self.global_step, outputs["loss"].item())
        truth.die_once(self.global_step, int(given.get("die", 0)))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            truth.evaluate(self.global_step, loss=self.trainer.callback_metrics["val_loss"].item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


trainer = pl.Trainer(
    max_epochs=int(given["epochs"]), accelerator="cpu", logger=False, default_root_dir=given["out"],
    enable_model_summary=False, callbacks=[pl.callbacks.ModelCheckpoint(given["out"], monitor="val_loss", save_last=True)],
)  # fmt: skip
trainer.fit(
    Model(), torch.utils.data.DataLoader(points[:64], 8, shuffle=True), torch.utils.data.DataLoader(points[64:], 16)
)
truth.end()

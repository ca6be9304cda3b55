"""Lightning with its bar (tqdm or rich) and its loggers (CSV and TensorBoard)."""

import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
torch.set_num_threads(1)
bar, loggers = sys.argv[1], sys.argv[2] == "loggers"
truth = Truth()


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def loss(self, batch):
        return (self.layer(batch) - batch.sum(1, keepdim=True)).pow(2).mean()

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        # A logger names a step by the steps done before it; a bar counts the batches done.
        if loggers:
            truth.write(self.global_step, loss=loss.item())
        else:
            truth.write(self.global_step + 1, loss=float(f"{loss.item():.3f}" if bar == "rich" else f"{loss.item():.3g}"))
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def on_validation_end(self):
        if loggers and not self.trainer.sanity_checking:
            truth.write(self.global_step - 1, eval_loss=self.trainer.callback_metrics["val_loss"].item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


data = torch.randn(64, 8)
trainer = L.Trainer(
    max_epochs=3, accelerator="cpu", log_every_n_steps=1, enable_checkpointing=False, enable_model_summary=False,
    callbacks=[RichProgressBar() if bar == "rich" else TQDMProgressBar()],
    logger=[CSVLogger(".", name="csv", version=0), TensorBoardLogger(".", name="board", version=0)] if loggers else False,
)
trainer.fit(Model(), DataLoader(data, batch_size=4), DataLoader(data[:16], batch_size=4))

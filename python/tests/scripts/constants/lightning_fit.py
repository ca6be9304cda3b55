"""A training by Lightning with its settings as constants. It knows nothing of downshift."""

import lightning as L
import torch

torch.set_num_threads(1)
L.seed_everything(3)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


loader = torch.utils.data.DataLoader(torch.randn(160, 32), batch_size=4, shuffle=True)
trainer = L.Trainer(
    max_epochs=40, accelerator="cpu", logger=False, enable_checkpointing=False, accumulate_grad_batches=2, gradient_clip_val=1.0,
    enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Model(), loader)
print("STEP", trainer.global_step, flush=True)

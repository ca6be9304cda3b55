"""A plain loop that downshift keeps."""

import argparse

import downshift
import torch

BATCH = 48
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
options = parser.parse_args()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
data = torch.randn(512, 4)

run = downshift.attach(model, optimizer)
for batch in run.batches(data, epochs=3, batch_size=BATCH, accumulation=2):
    run.step(model(batch).pow(2).mean())

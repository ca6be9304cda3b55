"""A plain loop around accelerate. It knows nothing of downshift."""

import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

torch.set_num_threads(1)
set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 20)
data = torch.utils.data.TensorDataset(torch.randn(80, 16))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(2):
    for (points,) in loader:
        time.sleep(0.05)  # An order arrives while it trains.
        with accelerator.accumulate(model):
            accelerator.backward(model(points).pow(2).mean())
            if accelerator.sync_gradients and "--clip" in sys.argv:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
print("WEIGHTS", all(bool(torch.isfinite(value).all()) for value in model.parameters()), flush=True)

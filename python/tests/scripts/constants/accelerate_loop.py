"""A loop around accelerate with its settings as constants. It knows nothing of downshift."""

import time

import torch
from accelerate import Accelerator

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.randn(80, 16), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(60):
    for points in loader:
        time.sleep(0.05)
        with accelerator.accumulate(model):
            accelerator.backward(model(points).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()

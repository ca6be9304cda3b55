"""Two optimizers in a plain torch loop. It knows nothing of downshift."""

import torch

torch.set_num_threads(1)
first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
optimizers = [torch.optim.SGD(first.parameters(), 0.1), torch.optim.AdamW(second.parameters(), 0.01)]
schedule = torch.optim.lr_scheduler.LinearLR(optimizers[0], 1, 0.1, 10)
for step in range(30):
    for optimizer in optimizers:
        optimizer.zero_grad()
    second(first(torch.randn(4, 8))).pow(2).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    schedule.step()
print("WEIGHTS", "done", flush=True)

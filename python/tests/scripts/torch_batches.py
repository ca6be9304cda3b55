"""A plain loop over a DataLoader, with a step every N batches; 0 is a step a batch without a DataLoader. `--drop` leaves
out every tenth step. It knows nothing of downshift."""

import sys

import torch

torch.set_num_threads(1)
every, drops = int(sys.argv[1]), "--drop" in sys.argv
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.randn(130, 8)
loader = torch.utils.data.DataLoader(data, batch_size=1) if every else [data[at : at + 1] for at in range(130)]
held_out = torch.utils.data.DataLoader(data[:20], batch_size=1)
for epoch in range(2):
    for number, batch in enumerate(loader, 1):
        model(batch).pow(2).mean().backward()
        due = number % max(every, 1) == 0
        if due and not (drops and number // max(every, 1) % 10 == 0):
            optimizer.step()
            optimizer.zero_grad()
        if number % 40 == 0:
            for batch in held_out:
                model(batch)

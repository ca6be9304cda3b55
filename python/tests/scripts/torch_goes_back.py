"""A plain loop that loads its own checkpoint in the middle, as one does after a spike of the loss."""

import copy

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


train(10)
kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
train(5)
model.load_state_dict(kept[0])
optimizer.load_state_dict(kept[1])
train(5)
print("WEIGHTS done")

"""Separated training with a safe mode, as in guide (a): weight phases and architecture phases alternate.

The fast path crashes after 40 steps, as fused kernels did there. `--safe_mode` leaves it out.
"""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["separated", "joint"], default="joint")
parser.add_argument("--safe_mode", nargs="?", const="true", default="false", choices=["true", "false"])
parser.add_argument("--steps", type=int, default=80)
arguments = parser.parse_args()
safe = arguments.safe_mode == "true"

torch.manual_seed(0)
torch.set_num_threads(1)
weights = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Conv1d(1, 1, 3, padding=1)])
head = torch.nn.Linear(16, 1)
choice = torch.nn.Parameter(torch.zeros(2))  # the architecture: how much of each operation
optimizers = {
    "weights": torch.optim.SGD([*weights.parameters(), *head.parameters()], lr=0.05, foreach=not safe),
    "architecture": torch.optim.Adam([choice], lr=0.01, foreach=not safe),
}


def forward(inputs):
    linear, convolution = weights
    share = choice.softmax(0)
    return head(torch.relu(share[0] * linear(inputs) + share[1] * convolution(inputs.unsqueeze(1)).squeeze(1)))


for step in range(1, arguments.steps + 1):
    # Two weight phases for each architecture phase, or both at once.
    phases = ["architecture" if step % 3 == 0 else "weights"] if arguments.mode == "separated" else list(optimizers)
    inputs = torch.randn(32, 16)
    loss = (forward(inputs) - inputs[:, :4].sum(1, keepdim=True)).pow(2).mean()
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    loss.backward()
    for phase in phases:
        optimizers[phase].step()
    print(f"step {step}/{arguments.steps} loss {loss.item():.4f} share: {choice.softmax(0)[0].item():.3f}")
    if step == 40 and not safe:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

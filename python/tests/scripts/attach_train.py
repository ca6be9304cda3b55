"""A plain loop whose companion saves and resumes it: dropout, random augmentation, a scheduler."""

import argparse
import time

import torch
from torch import nn

import downshift


class Noisy(torch.utils.data.Dataset):
    """Samples with a random augmentation."""

    def __init__(self):
        self.inputs = torch.randn(96, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        sample = self.inputs[index]
        return sample + 0.05 * torch.randn(16), sample[:4].sum(0, keepdim=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    run = downshift.attach(model, optimizer, scheduler)
    for inputs, targets in run.batches(Noisy(), epochs=1000, batch_size=arguments.batch_size):
        run.step(nn.functional.mse_loss(model(inputs), targets))
        # Slow enough for a kill to come before the next save.
        time.sleep(0.03)


if __name__ == "__main__":
    main()

"""A plain loop of a minute and a half, for the picture of a night: it runs out of memory, shifts down, and climbs back."""

import time

import downshift_cockpit as downshift
import torch


class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        wave = torch.sin(torch.linspace(0, 3, 16) + index / 100)
        return wave + 0.3 * torch.randn(16), wave[:4] + 0.4 * torch.randn(4)


torch.manual_seed(0)
torch.set_num_threads(1)
data = Waves()
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
run = downshift.attach(model, torch.optim.SGD(model.parameters(), 6e-4))
for waves, wanted in run.batches(data, epochs=13, batch_size=32):
    run.step(torch.nn.functional.mse_loss(model(waves), wanted))
    time.sleep(0.01)
    if run.is_boundary and run.step_number % 100 == 0:
        with torch.no_grad():
            pairs = [data[index] for index in range(0, 6400, 50)]
            answers = model(torch.stack([wave for wave, _ in pairs]))
            run.evaluated(loss=float(torch.nn.functional.mse_loss(answers, torch.stack([target for _, target in pairs]))))

"""A plain PyTorch loop whose bar counts within each epoch, and that resumes by itself in the middle of one."""

import argparse
import glob
import os
import time

import torch
from torch import nn
from tqdm import tqdm

EPOCHS, STEPS_PER_EPOCH, SAVE_STEPS = 3, 40, 25


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--accum", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = 0
    if arguments.resume:
        state = torch.load(arguments.resume)
        model.load_state_dict(state["model"])
        begin = state["step"]
    os.makedirs(arguments.out, exist_ok=True)
    step = begin
    for epoch in range(begin // STEPS_PER_EPOCH, EPOCHS):
        with tqdm(total=(epoch + 1) * STEPS_PER_EPOCH - step, desc="epoch {}".format(epoch), mininterval=0) as bar:
            while step < (epoch + 1) * STEPS_PER_EPOCH:
                inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
                loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                bar.set_postfix(loss="{:.4f}".format(loss.item()))
                bar.update()
                if step % SAVE_STEPS == 0:
                    path = os.path.join(arguments.out, "step_{}.pt".format(step))
                    torch.save({"model": model.state_dict(), "step": step}, path + ".partial")
                    os.replace(path + ".partial", path)
                time.sleep(0.04)
    left = glob.glob(os.path.join(arguments.out, "*.partial"))
    print("STEPS {} {}".format(step, left), flush=True)


if __name__ == "__main__":
    main()

"""A plain loop, in one process or in ranks, on a disk that is full until the folder beside it has a file `room`: no file may
grow beyond a few bytes.
"""

import argparse
import os
import resource

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--room", required=True)
options = parser.parse_args()

import torch

import downshift

if not os.path.exists(options.room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
run = downshift.attach(model, torch.optim.AdamW(model.parameters()))
for (batch,) in run.batches(torch.utils.data.TensorDataset(torch.randn(96, 16)), epochs=2, batch_size=options.batch):
    run.step(model(batch).pow(2).mean())
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()

"""A plain torch loop that resumes in a given way: `torch_resumes.py WAY FOLDER`. It knows nothing of downshift."""

import os
import pickle
import sys

import torch

way, folder = sys.argv[1:]
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
of_sgd = way.startswith("sgd")
make = (lambda values: torch.optim.SGD(values, 0.01, momentum=0.9)) if of_sgd else torch.optim.AdamW
optimizer = make(model.parameters())


def restore(found):
    model.load_state_dict({name: value for name, value in found["model"].items()})
    optimizer.load_state_dict(found["optimizer"])


if way == "newest":
    # It looks into every checkpoint, and takes the one of the latest step.
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pt")]
    found = {path: torch.load(path, weights_only=False) for path in paths}
    restore(max(found.values(), key=lambda state: state["step"]))
elif way == "open-file":
    with open(os.path.join(folder, "200.pt"), "rb") as file:
        restore(torch.load(file, weights_only=False))
elif way == "pickle":
    with open(os.path.join(folder, "200.pickle"), "rb") as file:
        restore(pickle.load(file))
elif way == "safetensors":
    from safetensors import safe_open
    from safetensors.torch import load_file

    model.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
    with safe_open(os.path.join(folder, "model.safetensors"), framework="pt") as file:
        assert list(file.keys())
elif way == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.load_state(os.path.join(folder, "state"))
elif way == "many":
    for number in range(200):
        torch.load(os.path.join(folder, "samples", "{}.pt".format(number)))
    restore(torch.load(os.path.join(folder, "200.pt"), weights_only=False))
    for number in range(200):
        torch.load(os.path.join(folder, "samples", "{}.pt".format(number)))

for _ in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    if way == "accelerate":
        accelerator.backward(loss)
    else:
        loss.backward()
    optimizer.step()
print("WEIGHTS", "done", flush=True)

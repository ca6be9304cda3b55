"""A loop in the shape of a LoRA trainer that resumes by `--resume`, and passes over the batches of before if it is told to."""

import json
import math
import multiprocessing
import os

from common import arguments, build, finish, save, train
from tqdm import tqdm

parser = arguments()
parser.add_argument("--resume")
parser.add_argument("--skip_until_initial_step", action="store_true")
parser.add_argument("--initial_step", type=int, help="wins over the step in the state")
args = parser.parse_args()
current_epoch = multiprocessing.Value("i", 0)
accelerator, model, optimizer, loader, schedule = build(args, current_epoch)
current, known = [0], [None]


def save_hook(models, weights, folder):
    with open(os.path.join(folder, "train_state.json"), "w") as file:
        json.dump({"current_step": current[0] + 1}, file)


def load_hook(models, folder):
    if os.path.exists(os.path.join(folder, "train_state.json")):
        with open(os.path.join(folder, "train_state.json")) as file:
            known[0] = json.load(file)["current_step"]


accelerator.register_save_state_pre_hook(save_hook)
accelerator.register_load_state_pre_hook(load_hook)
if args.resume:
    accelerator.load_state(args.resume)
epochs = math.ceil(args.max_train_steps / math.ceil(len(loader) / args.gradient_accumulation_steps))
initial, first, step = known[0] or 0 if args.initial_step is None else args.initial_step, 0, 0
if initial > 0 and args.skip_until_initial_step:
    initial *= args.gradient_accumulation_steps
    first = initial // len(loader)
    initial -= first * len(loader)
    step = initial // args.gradient_accumulation_steps
else:
    initial = 0
bar = tqdm(range(args.max_train_steps - step), smoothing=0, desc="steps")
for epoch in range(first, epochs):
    current_epoch.value = epoch + 1
    skipped = None
    if initial > 0:
        skipped = accelerator.skip_first_batches(loader, initial - 1)
        initial = 1
    for batch in skipped or loader:
        current[0] = step
        if initial > 0:
            initial -= 1
            continue
        loss = train(accelerator, model, optimizer, schedule, batch, args.pause)
        if accelerator.sync_gradients:
            bar.update(1)
            step += 1
            save(accelerator, args, step, "at-step{:08d}-state")
        bar.set_postfix(avr_loss=float(loss))
        if step >= args.max_train_steps:
            break
finish(model)

"""A loop in the shape of an example that finds its checkpoint by name, and takes step and epoch from that name."""

import math
import os

from common import arguments, build, finish, save, train
from tqdm import tqdm

parser = arguments()
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--passes_over", action="store_true", help="the batches of before, by `continue`")
args = parser.parse_args()
accelerator, model, optimizer, loader, schedule = build(args)
per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
epochs = math.ceil(args.max_train_steps / per_epoch)
step = first = before = 0
if args.resume_from_checkpoint:
    name = os.path.basename(args.resume_from_checkpoint)
    accelerator.print("Resuming from checkpoint {}".format(name))
    accelerator.load_state(os.path.join(args.output_dir, name))
    step = int(name.split("-")[1])
    first = step // per_epoch
    before = (step - first * per_epoch) * args.gradient_accumulation_steps
bar = tqdm(range(args.max_train_steps), initial=step, desc="Steps")
for epoch in range(first, epochs):
    for number, batch in enumerate(loader):
        if args.passes_over and epoch == first and number < before:
            continue
        loss = train(accelerator, model, optimizer, schedule, batch, args.pause)
        if accelerator.sync_gradients:
            bar.update(1)
            step += 1
            save(accelerator, args, step, "checkpoint-{}")
        bar.set_postfix(step_loss=float(loss), lr=schedule.get_last_lr()[0])
        if step >= args.max_train_steps:
            break
finish(model)

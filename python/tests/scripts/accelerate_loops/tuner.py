"""A loop in the shape of a trainer that loads its state, and then counts steps and epochs from 0."""

import math

import torch
from common import Pictures, arguments, build, evaluate, finish, save, train
from tqdm import tqdm

parser = arguments()
parser.add_argument("--resume")
parser.add_argument("--evaluate_every", type=int, help="steps; also before the first one and behind the last one")
args = parser.parse_args()
accelerator, model, optimizer, loader, schedule = build(args)
if args.resume:
    accelerator.load_state(args.resume)
test = accelerator.prepare(torch.utils.data.DataLoader(Pictures(20), batch_size=5)) if args.evaluate_every else None
if test is not None:
    evaluate(accelerator, model, test)
epochs = math.ceil(args.max_train_steps / math.ceil(len(loader) / args.gradient_accumulation_steps))
bar = tqdm(range(args.max_train_steps), smoothing=0, desc="steps")
step = 0
for epoch in range(epochs):
    accelerator.print("\nepoch {}/{}".format(epoch + 1, epochs))
    for batch in loader:
        loss = train(accelerator, model, optimizer, schedule, batch, args.pause)
        if accelerator.sync_gradients:
            bar.update(1)
            step += 1
            if test is not None and step % args.evaluate_every == 0:
                evaluate(accelerator, model, test)
            save(accelerator, args, step, "at-step{:08d}-state")
        bar.set_postfix(avr_loss=float(loss))
        if step >= args.max_train_steps:
            break
if test is not None:
    evaluate(accelerator, model, test)
finish(model)

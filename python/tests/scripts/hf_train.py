"""A Hugging Face training with dropout, random augmentation and loader processes. It knows nothing of downshift."""

import argparse
import hashlib
import random

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--epochs", type=float, default=4)
parser.add_argument("--aug", default="torch")
parser.add_argument("--sampler", default="random")
parser.add_argument("--save", default="no")
parser.add_argument("--keep", type=int)
parser.add_argument("--eval", action="store_true")
parser.add_argument("--jit", action="store_true")
parser.add_argument("--twice", action="store_true")
parser.add_argument("--log", type=int, default=500)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--own-rate", type=float, help="an optimizer of the script's own, at a constant rate")
parser.add_argument("--set-rate", action="store_true", help="puts --lr into a resumed schedule, as scripts do")
parser.add_argument("--term-at", type=int, default=0)
options = parser.parse_args()

import os
import signal

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(0)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count=80):
        self.tokens = torch.randint(0, 128, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index].clone()
        if "torch" in options.aug:
            tokens[torch.randint(0, 16, (2,))] = 5
        if "numpy" in options.aug:
            tokens[numpy.random.randint(0, 16, 2)] = 6
        if "python" in options.aug:
            tokens[random.randrange(16)] = 7
        return {"input_ids": tokens, "labels": tokens.clone(), "length": int(tokens[0])}


class Terminate(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == options.term_at:
            os.kill(os.getpid(), signal.SIGTERM)


class SetRate(TrainerCallback):
    def on_train_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        if options.set_rate and state.global_step > 0:
            factor = args.learning_rate / optimizer.param_groups[0]["initial_lr"]
            lr_scheduler.base_lrs = [rate * factor for rate in lr_scheduler.base_lrs]
            for group in optimizer.param_groups:
                group["initial_lr"], group["lr"] = group["initial_lr"] * factor, group["lr"] * factor


dropout = dict(resid_pdrop=options.dropout, embd_pdrop=options.dropout, attn_pdrop=options.dropout)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_layer=2, n_embd=32, n_head=2, **dropout))
arguments = TrainingArguments(
    output_dir=options.out, per_device_train_batch_size=options.batch, gradient_accumulation_steps=options.accum,
    num_train_epochs=options.epochs, learning_rate=options.lr, logging_steps=options.log, save_strategy=options.save,
    save_total_limit=options.keep,
    report_to=[], use_cpu=True, dataloader_num_workers=options.workers, disable_tqdm=True, lr_scheduler_type="cosine",
    train_sampling_strategy="group_by_length" if options.sampler == "length" else "random",
    eval_strategy="epoch" if options.eval else "no", enable_jit_checkpoint=options.jit,
)  # fmt: skip
own = (None, None)
if options.own_rate:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.own_rate)
    own = (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
trainer = Trainer(
    model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts(16), callbacks=[Terminate(), SetRate()],
    optimizers=own,
)  # fmt: skip
trainer.train()
if options.twice:
    trainer.train()
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
print("WEIGHTS", digest.hexdigest()[:16], "STEP", trainer.state.global_step, flush=True)

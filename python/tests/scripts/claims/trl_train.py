"""Supervised fine-tuning by TRL, which logs, evaluates and saves every 5 steps."""

import sys

import torch
from datasets import Dataset
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel, TrainerCallback
from trl import SFTConfig, SFTTrainer

from truth import Truth

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
torch.set_num_threads(1)
torch.manual_seed(0)
truth = Truth(given["truth"])
tokenizer = ByT5Tokenizer()
texts = Dataset.from_dict({"text": ["line {} of the data: {}".format(index, index * index) for index in range(48)]})
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_layer=2, n_embd=32, n_head=2))


class Record(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            truth.load("memory", state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        truth.update(state.global_step, None)
        truth.die_once(state.global_step, int(given.get("die", 0)))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            truth.update(state.global_step, float(logs["loss"]))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        truth.evaluate(state.global_step, loss=metrics["eval_loss"])


arguments = SFTConfig(
    output_dir=given["out"], per_device_train_batch_size=4, num_train_epochs=float(given["epochs"]), learning_rate=1e-3,
    logging_steps=1, save_strategy="no", eval_strategy="steps", eval_steps=5, report_to=[], use_cpu=True, bf16=False,
    disable_tqdm=True, max_length=64,
)  # fmt: skip
SFTTrainer(
    model=model, args=arguments, train_dataset=texts, eval_dataset=texts.select(range(8)), processing_class=tokenizer,
    callbacks=[Record()],
).train()  # fmt: skip
truth.end()

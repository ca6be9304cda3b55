"""A tiny GPT-2 with the Hugging Face Trainer: steps, losses, evaluations, and files of the reporters named."""

import sys

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from truth import Truth

NAMES = {"learning_rate": "lr"}
reporters = sys.argv[1].split(",") if len(sys.argv) > 1 and sys.argv[1] else []
nan_at = int(sys.argv[2]) if len(sys.argv) > 2 else None
truth = Truth()


def shown(value):
    """The digits that the progress bar of this version prints; reporters get the value itself."""
    rounded = int(transformers.__version__.split(".")[0]) >= 5 and not reporters
    return float(f"{value:.4g}") if rounded and isinstance(value, float) else float(value)


class Record(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "train_runtime" not in logs:
            kept = {NAMES.get(name, name): shown(value) for name, value in logs.items() if name != "epoch"}
            truth.write(state.global_step, **kept)


class WithNan(GPT2LMHeadModel):
    calls = 0

    def forward(self, input_ids=None, labels=None, **named):
        out = super().forward(input_ids=input_ids, labels=labels, **named)
        if self.training:
            self.calls += 1
            if self.calls == nan_at:
                out.loss = out.loss * float("nan")
        return out


torch.manual_seed(0)
torch.set_num_threads(1)
words = torch.randint(0, 64, (96, 16))
data = [{"input_ids": row, "labels": row} for row in words]
model = WithNan(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16))
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, num_train_epochs=2, logging_steps=3, eval_strategy="steps",
    eval_steps=12, save_strategy="no", report_to=reporters, use_cpu=True, logging_nan_inf_filter=False,
    max_grad_norm=1.0, learning_rate=1e-3, logging_first_step=True, disable_tqdm=False,
)
Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:40], callbacks=[Record()]).train()

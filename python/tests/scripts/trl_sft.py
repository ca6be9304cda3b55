"""Supervised fine-tuning by TRL with a LoRA of PEFT. It knows nothing of downshift."""

import argparse
import hashlib

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accum", type=int, default=1)
options = parser.parse_args()

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)
torch.manual_seed(0)
tokenizer = ByT5Tokenizer()
texts = Dataset.from_dict({"text": ["line {} of the data: {}".format(index, index * index) for index in range(48)]})
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_layer=2, n_embd=32, n_head=2))
arguments = SFTConfig(
    output_dir=options.out, per_device_train_batch_size=options.batch, gradient_accumulation_steps=options.accum,
    num_train_epochs=2, learning_rate=1e-3, logging_steps=5, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
    disable_tqdm=True, max_length=64, dataset_num_proc=None,
)  # fmt: skip
trainer = SFTTrainer(
    model=model, args=arguments, train_dataset=texts, processing_class=tokenizer,
    peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn"]),
)  # fmt: skip
trainer.train()
digest = hashlib.sha256()
for value in trainer.model.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
print("WEIGHTS", digest.hexdigest()[:16], "STEP", trainer.state.global_step, flush=True)

"""A LoRA by TRL's SFTTrainer with its settings as constants, as people write it for Unsloth. It knows nothing of downshift."""

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)
torch.manual_seed(0)
tokenizer = ByT5Tokenizer()
texts = Dataset.from_dict({"text": ["line {} of the data: {}".format(index, index * index) for index in range(64)]})
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_layer=2, n_embd=32, n_head=2))
trainer = SFTTrainer(
    model=model,
    train_dataset=texts,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, target_modules=["c_attn"]),
    args=SFTConfig(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        warmup_steps=5,
        num_train_epochs=40,
        learning_rate=1e-3,
        logging_steps=1,
        optim="adamw_torch",
        weight_decay=0.01,
        lr_scheduler_type="linear",
        seed=3407,
        output_dir="outputs",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        max_length=64,
    ),
)
trainer.train()
print("STEP", trainer.state.global_step, flush=True)

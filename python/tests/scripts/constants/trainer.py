"""A training by Hugging Face's Trainer with its settings as constants. It knows nothing of downshift."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(0)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        tokens = torch.randint(0, 128, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.clone()}


model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_layer=2, n_embd=32, n_head=2))
settings = TrainingArguments(
    output_dir="outputs", per_device_train_batch_size=8, num_train_epochs=40, learning_rate=1e-3, logging_steps=1,
    save_strategy="no", report_to=[], use_cpu=True,
)  # fmt: skip
trainer = Trainer(model=model, args=settings, train_dataset=Texts())
trainer.train()
print("STEP", trainer.state.global_step, flush=True)

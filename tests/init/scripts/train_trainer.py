"""Fine-tunes with Hugging Face's Trainer and says nothing about checkpoints."""

import argparse

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    arguments = TrainingArguments("out", learning_rate=options.lr, per_device_train_batch_size=options.batch)
    Trainer(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=arguments).train()


if __name__ == "__main__":
    main()

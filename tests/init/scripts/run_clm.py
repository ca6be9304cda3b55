"""Fine-tunes a causal language model, in the style of transformers' example scripts."""

import sys
from dataclasses import dataclass, field
from typing import Optional

import transformers
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    """Arguments of the model."""

    model_name_or_path: Optional[str] = field(default=None, metadata={"help": "The checkpoint for weights initialization."})
    config_overrides: Optional[str] = field(default=None, metadata={"help": "Override some existing settings."})
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "Whether to use a fast tokenizer."})
    attn_implementation: Optional[str] = field(default="flash_attention_2", metadata={"help": "Which attention to use."})
    dtype: Optional[str] = field(
        default=None,
        metadata={"help": "Load the model under this dtype.", "choices": ["auto", "bfloat16", "float16", "float32"]},
    )


@dataclass
class DataTrainingArguments:
    """Arguments of the data."""

    dataset_name: Optional[str] = field(default=None, metadata={"help": "The name of the dataset to use."})
    block_size: Optional[int] = field(default=None, metadata={"help": "Input sequence length after tokenization."})
    streaming: bool = field(default=False, metadata={"help": "Enable streaming mode"})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=sys.argv[1])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    trainer = Trainer(model=None, args=training_args)
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    print(transformers.__version__, model_args, data_args)


if __name__ == "__main__":
    main()

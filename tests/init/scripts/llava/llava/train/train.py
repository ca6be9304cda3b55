"""Three dataclasses, one of which extends Hugging Face's own, in the style of LLaVA."""

from dataclasses import dataclass, field
from typing import List, Optional

import transformers
from llava.train.llava_trainer import LLaVATrainer


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = field(default="facebook/opt-125m")
    version: Optional[str] = field(default="v0")
    freeze_backbone: bool = field(default=False)
    mm_vision_select_layer: Optional[int] = field(default=-1)   # default to the last layer
    mm_projector_type: Optional[str] = field(default='linear')


@dataclass
class DataArguments:
    data_path: str = field(default=None, metadata={"help": "Path to the training data."})
    lazy_preprocess: bool = False
    is_multimodal: bool = False
    image_folder: Optional[str] = field(default=None)


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    cache_dir: Optional[str] = field(default=None)
    optim: str = field(default="adamw_torch")
    model_max_length: int = field(default=512, metadata={"help": "Maximum sequence length."})
    bits: int = field(default=16, metadata={"help": "How many bits to use."})
    lora_enable: bool = False
    lora_r: int = 64
    mm_projector_lr: Optional[float] = None
    group_by_modality_length: bool = field(default=False)
    lora_target: List[str] = field(default_factory=list)


def train(attn_implementation=None):
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    trainer = LLaVATrainer(model=None, args=training_args)
    trainer.train()
    print(model_args, data_args, attn_implementation)

"""Nested dataclasses, read by tyro."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional

import torch
import tyro


@dataclass
class OptimizerConfig:
    lr: float = 1e-3
    weight_decay: float = 1e-2
    max_grad_norm: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass
class Config:
    """Trains a small network."""

    data: str
    """The data."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch_size: int = 20
    grad_accum: int = 1
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    compile: bool = True
    checkpoint_activations: bool = False
    max_steps: int = 1000
    seed: Optional[int] = None


def main(config: Config) -> None:
    print(config, torch.__version__)


if __name__ == "__main__":
    main(tyro.cli(Config))

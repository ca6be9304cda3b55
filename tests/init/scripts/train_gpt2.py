"""Trains a small GPT, in the style of single-file trainers with argparse."""

import argparse
import math
import os

import torch
from torch.nn import functional as F

DEFAULT_LR = 3e-4


def get_lr(step, args):
    if step < args.warmup_iters:
        return args.learning_rate * (step + 1) / args.warmup_iters
    return args.learning_rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    # file system
    parser.add_argument("--input_bin", type=str, default="data/tiny_val.bin", help="input .bin to train on")
    parser.add_argument("--output_dir", type=str, default="", help="output directory to which to write logs and checkpoints")
    parser.add_argument("--model", type=str, default="d12", choices=["d12", "d24", "d36", "d48"])
    # token layout for each step of the optimization
    parser.add_argument("--batch_size", "-b", type=int, default=8, help="batch size, in units of #batch dimensions")
    parser.add_argument("--sequence_length", type=int, default=2**10, help="sequence length")
    parser.add_argument("--grad_accum_steps", type=int, default=4, help="micro-batches per optimizer step")
    # optimization
    parser.add_argument("--num_iterations", type=int, default=10, help="number of iterations to run")
    parser.add_argument("--learning_rate", type=float, default=DEFAULT_LR, help="learning rate")
    parser.add_argument("--warmup_iters", type=int, default=0)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--grad_clip", type=float, default=1.0, help="maximum gradient magnitude")
    # numerics and memory
    parser.add_argument("--dtype", type=str, default="bfloat16", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile the model")
    parser.add_argument("--flash", action="store_true", help="use flash attention")
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    print(math.pi, os.getcwd(), F.gelu, get_lr(0, args), torch.__version__)

import argparse

import torch


def str2bool(text):
    return text.lower() in ("yes", "true", "t", "1")


def build_parser(extra=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    group = parser.add_argument_group("training")
    group.add_argument("-b", "--batch-size", default=32, type=int, metavar="N")
    group.add_argument("--grad-accumulation", default=1, type=int)
    group.add_argument("--lr", default=0.1, type=float)
    group.add_argument("--amp", action="store_true")
    group.add_argument("--fp16", type=str2bool, default=True)
    group.add_argument("--checkpoint-activations", type=bool, default=False)
    return parser


if __name__ == "__main__":
    print(torch.compile, build_parser().parse_args())

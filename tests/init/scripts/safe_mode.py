"""Subcommands and modes, in the style of a course's example."""

import argparse


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("--mode", choices=["joint", "separated"], default="joint")
    train.add_argument("--safe_mode", action="store_true")
    train.add_argument("--batch", type=int, default=3 * 5)
    train.add_argument("--accumulation", type=int, default=2)
    evaluate = commands.add_parser("evaluate")
    evaluate.add_argument("--batch", type=int, default=1)
    evaluate.add_argument("--lr", type=float, default=1.0)
    for name in ("alpha", "beta"):
        train.add_argument(f"--{name}", type=float, default=0.5)
    train.set_defaults(accumulation=3)
    print(parser.parse_args())


main()

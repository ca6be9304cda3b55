"""Options of click, some of them shared through a decorator."""

import click


def optimizer_options(function):
    function = click.option("--lr", "learning_rate", default=1e-3, show_default=True, help="Learning rate.")(function)
    return click.option("--clip-grad", type=click.FloatRange(min=0), default=0.0, help="Maximum norm; 0 = none.")(function)


@click.command()
@click.option("--data", type=click.Path(exists=True), required=True)
@click.option("--batch-size", "-b", default=64, help="Samples per step.")
@click.option("--accum", type=int, default=1)
@click.option("--precision", type=click.Choice(["32", "16", "bf16"]), default="16")
@click.option("--compile/--no-compile", default=False)
@click.option("--grad-checkpointing", is_flag=True, help="Recompute activations.")
@click.option("--outdir", default="runs/click", help="Where to save.")
@click.option("--workers", default=4, type=int)
@click.option("-v", "--verbose", count=True)
@optimizer_options
def main(**options):
    print(options)


if __name__ == "__main__":
    main()

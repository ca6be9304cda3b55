"""downshift's companion: keeps a PyTorch loop exactly resumable. `import downshift` costs nothing until it is used."""

from __future__ import annotations

__all__ = ["attach"]


def attach(*arguments, **options):
    """Restores a training and returns its `Run`: see `downshift.loop.attach`."""
    from downshift import loop

    return loop.attach(*arguments, **options)

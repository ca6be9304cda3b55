"""The exact position of a DataLoader, in the two methods that Lightning looks for: `state_dict`, `load_state_dict`.

A pass is named by its epoch and its number, from which its order follows (see fetch.py), so the position is a count.
"""

from __future__ import annotations

from downshift_cockpit import fetch


def install(loader_class):
    """Gives torch's DataLoader its state. A loader class with a state of its own keeps it."""
    if not hasattr(loader_class, "state_dict"):
        loader_class.state_dict, loader_class.load_state_dict = state_dict, load_state_dict


def state_dict(self):
    """Returns the pass that runs, and the batches that the training has been given in it."""
    reference = self.__dict__.get("_downshift_iterator")
    iterator = reference() if reference is not None else None
    if iterator is None:
        return {}
    _, epoch, number = iterator._downshift
    served = iterator._downshift_served + iterator._num_yielded
    seeding = fetch.active()
    if seeding is not None:
        served -= seeding.batches_ahead()
    return {"epoch": epoch, "pass": number, "served": served, "batch_size": self.batch_size}


def load_state_dict(self, state):
    """Lets the next pass continue where the state was taken. Another batch size continues at the same sample."""
    if not state:
        return
    served, before, now = state["served"], state.get("batch_size"), self.batch_size
    if before and now and before != now:
        samples = served * before
        if samples % now:
            served = 0
        else:
            served = samples // now
        seeding = fetch.active()
        if seeding is not None:
            seeding.batch_size_changed(before, now, exact=samples % now == 0)
    self.__dict__["_downshift_restore"] = dict(state, served=served)

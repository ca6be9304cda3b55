"""The learning rate that a loop was really given, as far as its steps show it.

A script may set its rate by hand at every step, so a warm-up begins far below the rate that it was asked for. The rate that
was asked for is in the optimizer's defaults, which `load_state_dict` does not touch; what it brings back is in the groups.
"""

from __future__ import annotations

import functools
import math

from downshift_cockpit import knobs

# Steps in which a rate has to stay the same, before it counts as the one in force.
STEADY = 20

_restored = "_downshift_restored_rates"


def install(module):
    """Wraps `load_state_dict`, to see which rates it brings back."""
    original = module.Optimizer.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self, *args, **kwargs):
        before = _base_rate(self)
        result = original(self, *args, **kwargs)
        after = _base_rate(self)
        self.__dict__[_restored] = None if _is_same(before, after) else after
        return result

    module.Optimizer.load_state_dict = load_state_dict


class RateInForce:
    """The value of `optimizer.lr` for the introduction. `value` is none while it cannot be told."""

    def __init__(self, wanted):
        self._wanted = knobs.as_number(wanted)
        self._first = self._steady = None
        self._steps = 0
        self._is_decided = False
        self.value = None

    def observe(self, optimizer):
        """Takes in the rate of a step. Reports whether `value` has changed."""
        if self._is_decided:
            return False
        before, self.value = self.value, self._find(optimizer)
        return self.value != before

    def _find(self, optimizer):
        if self._wanted is None:
            self._is_decided = True
            return knobs.initial_rate(optimizer)
        group = optimizer.param_groups[0]
        initial, present = knobs.as_number(group.get("initial_lr")), knobs.as_number(group.get("lr"))
        # A wrapper of an optimizer, such as accelerate's, passes its load on.
        restored = getattr(optimizer, "optimizer", optimizer).__dict__.get(_restored)
        asked = knobs.as_number(getattr(optimizer, "defaults", {}).get("lr"))
        if any(_is_same(rate, self._wanted) for rate in (initial, present)) or (
            restored is None and _is_same(asked, self._wanted)
        ):
            self._is_decided = True
            return self._wanted
        return self._find_steady(initial, present, restored)

    def _find_steady(self, initial, present, restored):
        """Returns the rate that stayed in force for many steps. One that moves says nothing, unless a scheduler moves it."""
        self._steps += 1
        if initial is None:
            self._first = present if self._steps == 1 else self._first
            base = present if _is_same(present, self._first) else None
            if base is None:
                # Set by hand: it may still come to what was asked for.
                self._first, self._steps = present, 1
        else:
            # A scheduler that multiplies 1 by a rate has its base in the rate.
            self._steady = initial if _is_same(initial, present) or _is_same(initial, restored) else self._steady
            base = self._steady
        return base if base is not None and self._steps >= STEADY else None


def _base_rate(optimizer):
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return knobs.as_number(group.get("initial_lr", group.get("lr")))


def _is_same(first, second):
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-6)

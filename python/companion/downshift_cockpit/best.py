"""Tells whether an evaluation is better than all whose weights are kept."""

from __future__ import annotations

import math


class Best:
    """The ranking of the run file, and the best value so far."""

    def __init__(self, metric, lower_is_better, value):
        self._metric = metric
        self._lower_is_better = lower_is_better
        self._value = value

    @classmethod
    def of(cls, companion):
        """Returns the ranking of a run; none if it does not keep the best."""
        known = companion.best
        if not isinstance(known, dict) or "metric" not in known:
            return None
        return cls(known["metric"], bool(known.get("lower_is_better", True)), known.get("value"))

    def beats(self, loss, metrics):
        """Reports whether an evaluation is the best so far, which is then what the next one has to beat."""
        value = loss if self._metric == "loss" else metrics.get(self._metric)
        if value is None or not math.isfinite(value):
            return False
        if self._value is not None and not (value < self._value if self._lower_is_better else value > self._value):
            return False
        self._value = value
        return True

"""Updates that a GradScaler leaves out: it lowers its scale instead, because a gradient was infinite.

Most optimizers are not called then. A fused one is, and reads `found_inf` on the device: that is copied without a wait, and
read when the next step begins.
"""

from __future__ import annotations

import functools
import sys

from downshift_cockpit import optimizer_hook


def install(module):
    """Wraps the scaler's `step`. The scalers of the devices inherit it."""
    original = module.GradScaler.__dict__.get("step")
    if original is None:
        return

    @functools.wraps(original)
    def step(self, optimizer, *args, **kwargs):
        # A disabled scaler calls the optimizer, and has no state.
        loop = optimizer_hook.begin_scaled(optimizer) if self.is_enabled() else None
        if loop is None:
            return original(self, optimizer, *args, **kwargs)
        outcome = None
        try:
            result = original(self, optimizer, *args, **kwargs)
            outcome = Outcome(self, optimizer)
        finally:
            optimizer_hook.end_scaled(loop, optimizer, outcome)
        return result

    module.GradScaler.step = step


class Outcome:
    """What a scaler found in the gradients of one step."""

    def __init__(self, scaler, optimizer):
        self._scaler = scaler
        # Another version of torch, or a scaler of the script's own, may keep it elsewhere: then an optimizer that was called
        # took a step.
        state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
        self._found = list(state.get("found_inf_per_device", {}).values())
        self._copy = self._event = None
        self._is_late = False
        self.is_fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def begin_copy(self):
        """Copies the answer of a fused optimizer to the host, behind the work that is queued on the device."""
        self._is_late = True
        if any(value.is_cuda for value in self._found):
            torch = sys.modules["torch"]
            device = self._found[0].device
            self._copy = sum(value.to(device) for value in self._found).to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def found_infinite(self):
        """Reports whether a gradient was infinite or NaN."""
        if self._event is not None:
            self._event.synchronize()
            return bool(self._copy.item())
        return any(bool(value.item()) for value in self._found)

    def can_lower(self):
        """Reports whether a lower scale may help. At 1 and below, the gradients themselves are broken."""
        scale = self._scaler.get_scale()
        # Asked late, the scale has been halved.
        return scale >= 1.0 if self._is_late else scale > 1.0

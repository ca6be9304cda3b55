"""The gradient of a step: its norm, clipping, reading it, and the place of a value that is not finite."""

from __future__ import annotations

import math
import sys

from downshift_cockpit import ranks


class Gradients:
    """The parameters that the optimizers update. `drops`: a step whose norm is not finite is dropped."""

    def __init__(self, optimizers, drops=False):
        self.optimizers = optimizers
        self._drops = drops
        self._groups = -1
        self._parameters = []

    def parameters(self):
        """Returns all parameters, each once; groups may be added during the training."""
        groups = sum(len(optimizer.param_groups) for optimizer in self.optimizers)
        if groups != self._groups:
            self._groups = groups
            found = {}
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    found.update((id(parameter), parameter) for parameter in group["params"])
            self._parameters = list(found.values())
        return self._parameters

    def norm(self, clip=None):
        """Returns the norm of the whole gradient as a tensor, before clipping it to `clip`; none without gradients."""
        grads = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        if not grads:
            return None
        torch = sys.modules["torch"]
        with torch.no_grad():
            norm = _norm(torch, grads)
            if hasattr(norm, "full_tensor"):
                # Each rank holds a part of each gradient.
                norm = norm.full_tensor()
            if clip is not None:
                # A bad norm would spread to all gradients, before the bad one is named.
                divisor = _without_bad(torch, norm) if self._drops else norm
                scale = (clip / (divisor + 1e-6)).clamp(max=1.0)
                for device, part in _by_device(grads):
                    torch._foreach_mul_(part, scale.to(device))
        return norm

    def clear(self):
        """Drops the gradients."""
        for parameter in self.parameters():
            parameter.grad = None


def describe_non_finite(named):
    """Returns `where` and `parameter` of a dropped step: the first of (name, parameter) whose gradient is not finite.

    Reads back one value for each parameter before it, so it is only for dropped steps.
    """
    for name, parameter in named:
        grad = ranks.local(parameter.grad)
        if grad is not None and grad.is_sparse:
            grad = grad.coalesce().values()
        if grad is not None and grad.numel() and not math.isfinite(float(grad.detach().abs().max())):
            place = "a parameter of shape {}".format(list(parameter.shape)) if name is None else name
            return {"where": place, "parameter": name}
    return {"where": "the norm of all parameters", "parameter": None}


class ClippingHook:
    """Keeps torch's clipping from spreading a NaN or infinite norm to all gradients, before the bad one is named.

    A gradient of such a norm stays as it is; any other is clipped as without the hook. Nothing waits for the device.
    """

    def __init__(self):
        self._module = self._original = None

    def install(self):
        """Hooks into torch. Versions without this function clip on their own."""
        module = sys.modules.get("torch.nn.utils.clip_grad")
        original = getattr(module, "_clip_grads_with_norm_", None)
        if original is None:
            return
        torch = sys.modules["torch"]

        def clip(parameters, max_norm, total_norm, *args, **kwargs):
            if type(total_norm) is torch.Tensor:
                total_norm = _without_bad(torch, total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        self._module, self._original = module, original
        module._clip_grads_with_norm_ = clip

    @property
    def is_installed(self):
        """Whether a gradient after clipping shows which parameter is bad."""
        return self._original is not None

    def remove(self):
        """Takes the hook away."""
        if self._original is not None:
            self._module._clip_grads_with_norm_ = self._original
            self._original = None


def _without_bad(torch, norm):
    """Returns 0, by which nothing is clipped, for a norm that is not finite."""
    return torch.nan_to_num(norm, nan=0.0, posinf=0.0)


def _norm(torch, grads):
    first = grads[0].device
    if len(grads) == 1 and not grads[0].is_sparse:
        return torch.linalg.vector_norm(grads[0])
    norms = []
    for device, part in _by_device(grads):
        if any(grad.is_sparse for grad in part):
            norms += [grad.coalesce().values().norm() if grad.is_sparse else grad.norm() for grad in part]
        else:
            norms += torch._foreach_norm(part)
    return torch.linalg.vector_norm(torch.stack([norm if norm.device == first else norm.to(first) for norm in norms]))


def _by_device(grads):
    first = grads[0].device
    if all(grad.device == first for grad in grads):
        return [(first, grads)]
    parts = {}
    for grad in grads:
        parts.setdefault(grad.device, []).append(grad)
    return list(parts.items())


def read_both(loss, norm):
    """Returns loss and norm as numbers: one wait for the device."""
    if norm is None:
        return float(loss), 0.0
    if loss.is_cpu and norm.is_cpu:
        return loss.item(), norm.item()
    torch = sys.modules["torch"]
    both = torch.stack((loss.to(torch.float64).reshape(()), norm.to(loss.device, torch.float64).reshape(())))
    return tuple(both.tolist())

"""The gradient of a step: its norm, clipping, reading it, and the place of a value that is not finite."""

from __future__ import annotations

import math
import sys


class Gradients:
    """The parameters that the optimizers update."""

    def __init__(self, optimizers):
        self.optimizers = optimizers
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
            if clip is not None:
                scale = (clip / (norm + 1e-6)).clamp(max=1.0)
                for device, part in _by_device(grads):
                    torch._foreach_mul_(part, scale.to(device))
        return norm

    def clear(self):
        """Drops the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def find_non_finite(self, names):
        """Returns the name of the first parameter with a gradient that is not finite."""
        for parameter in self.parameters():
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                grad = grad.coalesce().values()
            if grad is not None and grad.numel() and not math.isfinite(float(grad.detach().abs().max())):
                return names.get(id(parameter), "a parameter of shape {}".format(list(parameter.shape)))
        return "the norm of all parameters"


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
    if loss.device.type == "cpu" and norm.device.type == "cpu":
        return loss.item(), norm.item()
    torch = sys.modules["torch"]
    both = torch.stack((loss.to(torch.float64).reshape(()), norm.to(loss.device, torch.float64).reshape(())))
    return tuple(both.tolist())

"""Steps, losses, rates, norms and a guard for loops that use accelerate on their own; accelerate_kept.py saves and resumes them."""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref

from downshift_cockpit import accelerate_kept, gradients, knobs, loads, report, wire
from downshift_cockpit.inject import NOTHING, Faults, poison
from downshift_cockpit.optimizer_hook import obey_without_saving, slow_down
from downshift_cockpit.rate_in_force import RateInForce

_loop = None
# Some wrappers of optimizers hide their steps, and nothing would ever take the losses.
MOST_LOSSES = 4096
# Batches whose samples are counted. A single one may be the short last batch of an epoch.
MEASURED = 64


def install(module):
    """Hooks into accelerate.optimizer, accelerate.data_loader and accelerate.accelerator, each when it is imported."""
    if module.__name__.endswith("optimizer"):
        _hook_optimizer(module.AcceleratedOptimizer)
        return
    accelerate_kept.install(module, _find_loop)
    if module.__name__.endswith("accelerator"):
        _hook_accelerator(module.Accelerator)


def _hook_accelerator(accelerator):
    backward, clip = accelerator.backward, accelerator.clip_grad_norm_

    @functools.wraps(backward)
    def traced_backward(self, loss, **kwargs):
        loop = _find_loop()
        if loop is not None:
            loop.accelerator = self
            loop.train()
            if hasattr(loss, "detach") and len(loop.losses) < MOST_LOSSES:
                loop.losses.append(loss.detach())
        return backward(self, loss, **kwargs)

    @functools.wraps(clip)
    def traced_clip(self, *args, **kwargs):
        norm = clip(self, *args, **kwargs)
        loop = _find_loop()
        if loop is not None:
            loop.norm = norm
        return norm

    accelerator.backward, accelerator.clip_grad_norm_ = traced_backward, traced_clip


def _hook_optimizer(optimizer):
    original = optimizer.step

    @functools.wraps(original)
    def step(self, closure=None):
        loop = _find_loop()
        if loop is None or not self.gradient_state.sync_gradients or not loop.counts(self):
            return original(self, closure)
        loop.strike(self)
        loop.before_step(self)
        result = original(self, closure)
        loop.after_step(self)
        return result

    optimizer.step = step


def _find_loop():
    global _loop
    if report.is_owned():
        return None
    companion = wire.companion()
    if companion is None or not report.observes("accelerate"):
        return None
    if _loop is None:
        try:
            _loop = AccelerateLoop(companion)
        except Exception as error:
            companion.quiet(error)
            return None
    return _loop


class AccelerateLoop:
    """A loop around an Accelerator. With several optimizers, the first one counts."""

    def __init__(self, companion):
        self.companion = companion
        self.report = report.Report(companion, "accelerate", report.version_of("accelerate"))
        resume = companion.resume or {}
        self.step, self.samples = resume.get("step") or 0, resume.get("samples") or 0
        self.losses, self.norm, self.accelerator, self.bad, self.rate, self.value = [], None, None, None, None, None
        self._faults, self._due = Faults.of(companion), NOTHING
        self._counted = self._micro_batch = self._most_samples = self._introduced = None
        # The batch in force is unknown so far, and is taken as measured.
        self._measured, self._is_batch_open, self._settles_batch = 0, False, False
        self._rate = RateInForce(companion.knob("optimizer.lr"))
        self._loads = loads.Observation(companion, self.report)
        self._time = time.perf_counter()
        # The newest batch completed a step.
        self.stepped = self.has_schedule = self.has_trained = self._has_begun = False
        self.kept = self._obstacle = None

    def keep(self, accelerator):
        """Returns what keeps the loop, if it can be kept. It begins with the first pass, which a state may precede."""
        if self.kept is None and self._obstacle is None and not self._has_begun:
            try:
                self._obstacle = accelerate_kept.find_obstacle(self.companion, accelerator, self.report.world)
                if self._obstacle is None:
                    self.kept = accelerate_kept.Kept(self, accelerator)
            except Exception as error:
                self.companion.quiet(error)
        return self.kept

    def train(self):
        """Notes that the script trains on the batch that it was given last."""
        self.has_trained = self._has_begun = True
        if self._measured < MEASURED:
            self._measured += 1
            self._most_samples = max(self._most_samples or 0, accelerate_kept.samples_in_batch() or 0) or None
        if self.kept is not None:
            self.kept.trained()

    def counts(self, optimizer):
        """Reports whether this optimizer's steps are the loop's steps."""
        counted = self._counted() if self._counted is not None else None
        if counted is None:
            self._counted = weakref.ref(optimizer)
        return counted is None or counted is optimizer

    def strike(self, optimizer):
        """Makes the faults ordered for the step that begins."""
        self._due = self._faults.strike(self.step + 1)
        if self._due.nan:
            # The norm that clipping saw is older than this NaN.
            poison(gradients.Gradients([optimizer]).parameters())
            self.norm = None

    def before_step(self, optimizer):
        """Reads loss and norm, and drops a step with a NaN or infinite gradient where no scaler does."""
        try:
            if not self.losses:
                self.train()
            self._introduce(optimizer)
            self._loads.before(optimizer.optimizer)
            self.rate, self.bad = knobs.rate(optimizer), None
            loss, norm = self._read(optimizer)
            self.value = (loss, norm)
            if norm is None or math.isfinite(norm):
                return
            scaled = optimizer.scaler is not None
            dropped = not scaled and self.companion.skip_non_finite
            what = "loss" if loss is not None and not math.isfinite(loss) else "gradient"
            place = "the step's mean" if what == "loss" else "the gradient's norm"
            self.bad = {"what": what, "where": place, "rescaled": scaled, "applied": not scaled and not dropped}
            if dropped:
                gradients.Gradients([optimizer]).clear()
        except Exception as error:
            self.companion.quiet(error)

    def after_step(self, optimizer):
        """Reports the step, and obeys an order that arrived."""
        try:
            self.step += 1
            if self.bad is None and optimizer.scaler is not None and optimizer.step_was_skipped:
                can_lower = optimizer.scaler.get_scale() > 1.0
                found = {"what": "gradient", "where": "found by the loss scaler"}
                self.bad = {**found, "rescaled": can_lower, "applied": False}
            if self.bad is None:
                self._loads.after(optimizer.optimizer)
            self.samples += self._micro_batch * max(1, len(self.losses)) * self.report.world
            if self._due.slow:
                slow_down(time.perf_counter() - self._time)
            self._report()
            self.losses, self.norm, self.stepped = [], None, True
            order = self.companion.take_order() if self.kept is None else None
            if order is not None:
                obey_without_saving(self.report, self.step, order)
        except Exception as error:
            self.companion.quiet(error)

    def _report(self):
        now, (loss, norm) = time.perf_counter(), self.value
        if self.bad is not None:
            self.report.skipped(self.step, self.samples, epoch=0, lr=self.rate or 0.0, **self.bad)
        else:
            self.report.step(
                self.step, self.samples, epoch=0, loss=loss, lr=self.rate, grad_norm=norm,
                micro_batches=max(1, len(self.losses)), data_wait_ms=0.0, compute_ms=(now - self._time) * 1000.0,
            )  # fmt: skip
        self._time = now

    def _read(self, optimizer):
        torch = sys.modules["torch"]
        norm = self.norm
        if norm is None:
            # Before a scaler has unscaled them, gradients are no measure of anything.
            norm = gradients.Gradients([optimizer]).norm() if optimizer.scaler is None else None
        loss = torch.stack([loss.float() for loss in self.losses]).mean() if self.losses else None
        return None if loss is None else float(loss), None if norm is None else float(norm)

    def _introduce(self, optimizer):
        """Introduces the loop, and again when the rate or the batch in force has become clear."""
        self._rate.observe(optimizer)
        self._settles_batch |= self._is_batch_open and self._measured >= MEASURED
        now = (self._rate.value, self._most_samples, self._settles_batch)
        if now == self._introduced:
            return
        self._introduced = now
        found = knobs.of_accelerator(self.accelerator) if self.accelerator is not None else {}
        declared, wanted = found.get("training.micro_batch"), self.companion.knob("training.micro_batch")
        in_force = knobs.micro_batch(declared, self._most_samples, knobs.as_number(wanted), self._settles_batch)
        self._is_batch_open = declared is not None and in_force is None
        self._micro_batch = int(in_force or wanted or self._most_samples or 0)
        if self.kept is not None and not self.kept.tracks:
            self._obstacle, self.kept = self.kept.limits or "its batches come from no prepared loader", None
        self.report.framework = "accelerate" if self.kept is None else "accelerate_loop"
        self.has_schedule = "initial_lr" in optimizer.param_groups[0]
        parameters = gradients.Gradients([optimizer]).parameters()
        resume = self._describe_resume(found)
        self.report.hello(
            guards=optimizer.scaler is None, parameters=report.count_parameters(parameters), counts_skips=True,
            knobs={**found, "optimizer.lr": self._rate.value, "training.micro_batch": in_force},
            measured=[] if in_force == declared else ["training.micro_batch"], **resume,
        )  # fmt: skip
        self.report.record_modules()

    def _describe_resume(self, found):
        """Returns the part of the introduction that says how the loop resumes."""
        if self.kept is not None:
            grade, reason = self.kept.grade(found)
            length = self.companion.length if self.companion.resume else None
            return {
                "grade": grade, "reason": reason, "saves": True, "resumed_from": self.kept.resumed_from, "samples": self.samples,
                "total_steps": length,
            }  # fmt: skip
        resume = self.companion.resume or {}
        reason = self._obstacle or "accelerate's state is saved and restored by the script"
        return {"grade": "script", "reason": reason, "resumed_from": resume.get("step"), "samples": resume.get("samples") or 0}

"""Steps and rates of a loop that uses nothing but torch, through torch's global hooks around every optimizer step.

A call does not prove an update: a scaled step that overflowed may call it too. Nothing can be saved or resumed.
Steps are counted as updates of this process: a loop that loads an earlier state of its own counts on, so no step is lost
or reported twice, but from there its numbers are higher than the script's. Steps in the output win, if it names any.
"""

from __future__ import annotations

import time
import weakref

from downshift import gradients, knobs, report, wire
from downshift.inject import NOTHING, Faults, poison

_loop = None


def install(module):
    """Hooks into torch.optim.optimizer."""
    module.register_optimizer_step_pre_hook(before_step)
    module.register_optimizer_step_post_hook(after_step)


def before_step(optimizer, args, kwargs):
    """Called by torch before each optimizer step of this process."""
    loop = _find_loop(optimizer)
    if loop is not None and loop.counts(optimizer):
        loop.strike(optimizer)


def after_step(optimizer, args, kwargs):
    """Called by torch behind each optimizer step of this process."""
    loop = _find_loop(optimizer)
    if loop is None or not loop.counts(optimizer):
        return
    try:
        loop.after_step(optimizer)
    except Exception as error:
        loop.companion.quiet(error)


def _find_loop(optimizer):
    global _loop
    if report.is_owned():
        return None
    companion = wire.companion()
    if companion is None:
        return None
    try:
        if not report.observes("torch"):
            return None
        if _loop is None:
            _loop = PlainLoop(companion, optimizer)
        return _loop
    except Exception as error:
        companion.quiet(error)
        return None


class PlainLoop:
    """A loop of which only optimizer steps are seen. With several optimizers, the first one counts."""

    def __init__(self, companion, optimizer):
        self.companion = companion
        self.report = report.Report(companion, "torch", report.version_of("torch"))
        resume = companion.resume or {}
        self.step, self.samples = resume.get("step") or 0, resume.get("samples") or 0
        self._faults = Faults.of(companion)
        self._slow = False
        self._counted = weakref.ref(optimizer)
        self._time = time.perf_counter()
        parameters = gradients.Gradients([optimizer]).parameters()
        self.report.hello(
            grade="script" if companion.resume else "none",
            reason="a loop without downshift.attach restores nothing by itself",
            parameters=report.count_parameters(parameters), resumed_from=resume.get("step"), samples=self.samples,
            knobs={"optimizer.lr": knobs.initial_rate(optimizer)},
        )  # fmt: skip
        self.report.record_modules()

    def counts(self, optimizer):
        """Reports whether this optimizer's steps are the loop's steps."""
        counted = self._counted()
        if counted is None:
            self._counted = weakref.ref(optimizer)
        return counted is None or counted is optimizer

    def strike(self, optimizer):
        """Makes the faults ordered for the step that begins."""
        due = self._faults.strike(self.step + 1)
        if due is not NOTHING:
            self._slow = due.slow
            if due.nan:
                poison(gradients.Gradients([optimizer]).parameters())

    def after_step(self, optimizer):
        """Reports a step, and obeys an order that arrived."""
        self.step += 1
        if self._slow:
            slow_down(time.perf_counter() - self._time)
        now = time.perf_counter()
        self.report.step(
            self.step, self.samples, epoch=0, lr=knobs.rate(optimizer), micro_batches=1, data_wait_ms=0.0,
            compute_ms=(now - self._time) * 1000.0,
        )  # fmt: skip
        self.report.fingerprint(self.step, None, knobs.rate(optimizer), None)
        self._time = now
        order = self.companion.take_order()
        if order is not None:
            obey_without_saving(self.report, self.step, order)


def slow_down(seconds):
    """Makes a step that took `seconds` take ten times as long: the fault `slow`."""
    time.sleep(min(9.0 * seconds, 60.0))


def obey_without_saving(reports, step, order):
    """Obeys an order in a loop that the companion cannot save: it ends only if nothing is to be saved."""
    if order.get("order") == "checkpoint":
        reports.save_failed(step, "the companion cannot save this loop")
    elif order.get("order") == "stop" and order.get("checkpoint"):
        reports.stop_refused(step, "the companion cannot save this loop")
    elif order.get("order") == "stop":
        reports.stopping(step, False)
        report.stop_process()

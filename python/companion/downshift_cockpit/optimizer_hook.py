"""Steps and rates of a loop that uses nothing but torch, through torch's global hooks around every optimizer step.

A call does not prove an update: a fused optimizer is called for a scaled step that overflowed, others are not. So the scaler
is asked (`scaler_hook`), and a step that it leaves out counts as one. Nothing can be saved or resumed.
Steps are counted as updates of this process: a loop that loads an earlier state of its own counts on, so no step is lost
or reported twice, but from there its numbers are higher than the script's. Steps in the output win, if it names any.
"""

from __future__ import annotations

import atexit
import time
import weakref

from downshift_cockpit import gradients, knobs, loads, report, rhythm, wire
from downshift_cockpit.inject import NOTHING, Faults, poison
from downshift_cockpit.rate_in_force import RateInForce

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


def begin_scaled(optimizer):
    """Called before a step through a GradScaler. Returns the loop to which it belongs, or none."""
    loop = _find_loop(optimizer)
    if loop is None or not loop.counts(optimizer):
        return None
    loop.begin_scaled()
    return loop


def end_scaled(loop, optimizer, outcome):
    """Called behind a step through a GradScaler; `outcome` is none if it failed."""
    try:
        loop.end_scaled(optimizer, outcome)
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
        self._loads = loads.Observation(companion, self.report)
        self._slow = False
        self._counted = weakref.ref(optimizer)
        self._time = time.perf_counter()
        self._rate = RateInForce(companion.knob("optimizer.lr"))
        self._rhythm = rhythm.watch()
        # Of the step that a scaler takes now: whether it called the optimizer. None outside of such a step.
        self._called = None
        # A step of a fused optimizer, until its device has told whether it updated the weights.
        self._open = None
        self._uses_scaler = False
        self._rate.observe(optimizer)
        self._parameters = report.count_parameters(gradients.Gradients([optimizer]).parameters())
        self._introduced = None
        self._introduce()
        self.report.record_modules()
        atexit.register(self._settle)

    def _introduce(self):
        """Introduces the loop, and again when what is known of it has changed."""
        counts_skips = self._uses_scaler or self._rhythm.is_steady
        now = (self._rate.value, counts_skips)
        if now == self._introduced:
            return
        self._introduced, resume = now, self.companion.resume or {}
        self.report.hello(
            grade="script" if self.companion.resume else "none",
            reason="a loop without downshift.attach restores nothing by itself",
            parameters=self._parameters, resumed_from=resume.get("step"), samples=resume.get("samples") or 0,
            knobs={"optimizer.lr": self._rate.value},
            counts_skips=counts_skips,
        )  # fmt: skip

    def counts(self, optimizer):
        """Reports whether this optimizer's steps are the loop's steps."""
        counted = self._counted()
        if counted is None:
            self._counted = weakref.ref(optimizer)
        return counted is None or counted is optimizer

    def strike(self, optimizer):
        """Looks at the step that begins, and makes the faults ordered for it."""
        self._loads.before(optimizer)
        self._settle()
        due = self._faults.strike(self.step + 1)
        if due is not NOTHING:
            self._slow = due.slow
            if due.nan:
                poison(gradients.Gradients([optimizer]).parameters())

    def begin_scaled(self):
        """Begins a step that a scaler takes."""
        self._settle()
        self._called = False

    def end_scaled(self, optimizer, outcome):
        """Reports a step that a scaler took or left out."""
        was_called, self._called = self._called, None
        if outcome is None:
            return
        self._uses_scaler = True
        if was_called and outcome.is_fused:
            outcome.begin_copy()
            self._open = (outcome, self._take_time(), knobs.rate(optimizer))
        else:
            self._report(self._take_time(), knobs.rate(optimizer), None if was_called else outcome)
        self._finish_step(optimizer)

    def after_step(self, optimizer):
        """Reports a step, and obeys an order that arrived."""
        self._loads.after(optimizer)
        if self._called is not None:
            self._called = True
            return
        self._report(self._take_time(), knobs.rate(optimizer), None)
        self._finish_step(optimizer)

    def _finish_step(self, optimizer):
        self._rhythm.stepped()
        self._rate.observe(optimizer)
        self._introduce()
        order = self.companion.take_order()
        if order is not None:
            obey_without_saving(self.report, self.step, order)

    def _settle(self):
        """Reports the step of a fused optimizer that is still open."""
        if self._open is None:
            return
        (outcome, took, rate), self._open = self._open, None
        try:
            self._report(took, rate, outcome if outcome.found_infinite() else None)
        except Exception as error:
            self.companion.quiet(error)

    def _take_time(self):
        now = time.perf_counter()
        if self._slow:
            slow_down(now - self._time)
            now = time.perf_counter()
        took, self._time = now - self._time, now
        return took

    def _report(self, took, rate, left_out):
        self.step += 1
        if left_out is not None:
            self.report.skipped(
                self.step, self.samples, epoch=0, lr=rate or 0.0, what="gradient", where="found by the loss scaler",
                rescaled=left_out.can_lower(), applied=False,
            )  # fmt: skip
        else:
            self.report.step(
                self.step, self.samples, epoch=0, lr=rate, micro_batches=1, data_wait_ms=0.0, compute_ms=took * 1000.0,
            )  # fmt: skip
        self.report.fingerprint(self.step, None, rate, None)


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

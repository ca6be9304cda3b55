"""The plain loop: `attach`, `batches`, `step`. Exact after any death of the process.

A step border is the moment when the loop asks for the next batch after a step: all that the script does in the body,
an evaluation or an average of the weights, belongs to the step and to its checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import time

from downshift_cockpit import batches as data
from downshift_cockpit import blame, border, excepthook, gradients, inject, introduction, knobs, order, rank_file, rates, report, sample
from downshift_cockpit import saver, snapshot, stacks, standby
from downshift_cockpit.excepthook import CheckpointError, ConfigError
from downshift_cockpit.ranks import are_sharded


class Run:
    """A training that can be interrupted at every step."""

    def __init__(self, parts, clip, schedule, seed):
        self._companion = companion = introduction.take_companion()
        self._parts = parts
        self._ranks = parts.ranks
        self._schedule = schedule
        self._names = parts.parameter_names()
        self._faults = inject.Faults.of(companion, self._ranks.rank)
        self._seed = self._find_seed(seed)
        self._clip = self._knob("optimizer.max_norm", clip)
        self._guards = companion is None or companion.skip_non_finite
        self._gradients = gradients.Gradients(parts.optimizers, self._guards or parts.scaler is not None)
        self._stacks = (None, None)
        self._source = self._micro = self._current = self._loss = self._kept = self._saver = None
        self._position = {"epoch": 0, "offset": 0, "samples": 0}
        self._step = self._skipped = self._micros = 0
        self._wait = self._compute = 0.0
        self._entered = 0.0
        # When `step` returned; none outside the rest of the loop's body.
        self._returned = None
        self._stepped = self._ended = False
        self._metrics, self._orders, self._ids = {}, {}, []
        self._due = inject.NOTHING
        self._resumed_from = self._agreement = self._other_world = None
        self._trial = companion is not None and companion.trial
        self._modules = None if companion is None else companion.modules
        if companion is not None:
            self._stacks = stacks.register(companion)
            self._restore(companion.resume)
        wanted = self._knob("optimizer.lr", None)
        if wanted is not None:
            rates.scale(parts.optimizers, parts.schedulers, float(wanted))
        self._gradients.clear()

    # The interface of the script.

    @property
    def step_number(self):
        """Optimizer steps taken so far, those of earlier attempts and dropped ones included."""
        return self._step

    @property
    def epoch(self):
        """The epoch of the present batch, from 0 on."""
        return self._position["epoch"] if self._current is None else self._current.epoch

    @property
    def is_boundary(self):
        """Whether the present batch completes an optimizer step."""
        return self._current is not None and self._current.is_boundary

    @property
    def is_epoch_end(self):
        """Whether the present batch is the last one of its epoch."""
        return self._current is not None and self._current.is_epoch_end

    def batches(
        self, dataset, epochs=1, batch_size=None, accumulation=1, workers=0, collate=None, drop_last=False, shuffle=True,
        **options,
    ):  # fmt: skip
        """Yields the batches from the present position to the end of the run.

        `dataset` has a length and an index, or is a DataLoader. A step takes `accumulation` batches. `workers`: loader
        processes. `drop_last` leaves out an epoch's last step if it is short. `options` go to torch's DataLoader.
        """
        if self._source is not None:
            raise ConfigError("run.batches was called a second time: a run has one loop, over all its epochs")
        ranks = self._ranks
        settings = data.Settings(epochs, batch_size, accumulation, workers, drop_last, ranks.rank, ranks.world)
        kept = None if self._kept is None else self._kept.loop["source"]
        self._source = data.open_source(dataset, settings, self._knob, self._seed, collate, shuffle, options, kept)
        return self._iterate()

    def step(self, loss):
        """Backward pass of the present batch, weighted by its samples; at the border, the optimizer step."""
        micro = self._micro
        if micro is None:
            raise ConfigError("run.step is called once for each batch of run.batches; add several losses up")
        self._micro = None
        if self._loss is None:
            self._due = self._faults.strike(self._step + 1)
        part = loss if micro.weight == 1.0 else loss * micro.weight
        part = self._ranks.spread_non_finite(part)
        scaler = self._parts.scaler
        self._ranks.backward(part if scaler is None else scaler.scale(part), micro.is_boundary)
        part = part.detach() if micro.share == micro.weight else loss.detach() * micro.share
        self._loss = part if self._loss is None else self._loss + part
        self._micros += 1
        if micro.is_boundary:
            self._take_step(micro)
        else:
            self._compute += time.perf_counter() - self._entered
        self._returned = time.perf_counter()

    def log(self, **values):
        """Adds measured values to the step that is reported next."""
        self._metrics.update((name, float(value)) for name, value in values.items())

    def evaluated(self, loss=None, **metrics):
        """Reports an evaluation of the present weights."""
        values = {name: float(value) for name, value in metrics.items()}
        mean = {} if loss is None else {"loss": float(loss)}
        self._send({"event": "eval", "step": self._step, "samples": self._samples_now(), "metrics": values, **mean})
        if self._saver is not None:
            self._saver.evaluated(mean.get("loss"), values)

    @contextlib.contextmanager
    def evaluating(self):
        """Marks an evaluation, whose time is not that of a step: `with run.evaluating(): …`."""
        self._ranks.file.enter(rank_file.EVALUATING)
        self._send({"event": "phase", "phase": "evaluating"})
        begun = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - begun
            if self._returned is None:
                self._entered += took
            else:
                self._returned += took
            self._ranks.file.enter(rank_file.SCRIPT)
            self._send({"event": "phase", "phase": "training"})

    def sample(self, text=None, image=None):
        """Keeps a text or a picture (a PIL image, a tensor, an array or a path) made at the present step, on rank 0."""
        if self._ranks.rank:
            return
        companion = self._companion
        folder = os.path.join(companion.run_dir if companion else ".", "samples")
        try:
            sample.write(folder, self._step, text, image)
        except OSError as error:
            self._send({"event": "note", "level": "warn", "text": "a sample could not be written: {}".format(error)})
            return
        self._send({"event": "samples", "step": self._step})

    def end(self):
        """Ends the run before its last batch, on purpose: saves, and reports it finished. Call it after a `break`."""
        if self._source is not None and not self._ended:
            self._leave(self._current)
            self._finish()

    # The loop itself.

    def _iterate(self):
        iterator = iter(self._source.iterate(dict(self._position)))
        self._try(self._introduce)
        while True:
            self._ranks.file.enter(rank_file.DATA)
            begun = time.perf_counter()
            pair = next(iterator, None)
            self._entered = time.perf_counter()
            self._ranks.file.enter(rank_file.COMPUTE)
            self._wait += self._entered - begun
            if pair is None:
                break
            self._current = self._micro = pair[0]
            if self._kept is not None:
                self._restore_random()
            self._ranks.reduce_at(pair[0].is_boundary)
            if self._trial:
                self._ids += self._source.ids(pair[0], self._orders)
            yield pair[1]
            if self._ended:
                return
            if self._returned is not None:
                # The rest of the body is reported with the next step: the last one has been.
                self._compute += time.perf_counter() - self._returned
                self._returned = None
            self._leave(pair[0])
        self._finish()

    def _leave(self, micro):
        """Leaves the body of a batch: after the last one of a step comes the step border."""
        if micro is None or not micro.is_boundary or self._current is None:
            return
        if self._micro is not None and self._loss is not None:
            if self._ranks.are_several:
                raise ConfigError("with several ranks, every batch needs its run.step: the reduction waits for all ranks")
            # The script left out the last batch of this step.
            self._take_step(micro)
        self._current = self._micro = None
        self._move(micro)
        if self._stepped:
            self._stepped = False
            self._try(self._at_border)

    def _try(self, action, *arguments):
        """Does what only the companion needs. If that fails, the training goes on without it."""
        if self._companion is None:
            return
        try:
            action(*arguments)
        except Exception as error:
            self._companion.quiet(error)
            self._companion = self._saver = None

    def _move(self, micro):
        if self._schedule == "epoch" and micro.is_epoch_end:
            rates.advance(self._parts.schedulers)
        self._position["samples"] += micro.step_samples
        if micro.is_epoch_end:
            self._position.update(epoch=micro.epoch + 1, offset=0)
        else:
            self._position.update(epoch=micro.epoch, offset=micro.step_end)

    def _take_step(self, micro):
        parts, scaler = self._parts, self._parts.scaler
        if self._due.nan:
            inject.poison(self._gradients.parameters())
        if scaler is not None:
            for optimizer in parts.optimizers:
                scaler.unscale_(optimizer)
        loss, norm = gradients.read_both(self._loss, self._gradients.norm(self._clip))
        rate = rates.current(parts.optimizers)
        self._step += 1
        self._stepped = True
        excepthook.set_step(self._step)
        self._ranks.file.took(self._step, loss)
        # Ranks have different losses, but the same norm, and must decide alike.
        finite = math.isfinite(norm) and (self._ranks.are_several or math.isfinite(loss))
        if finite or (scaler is None and not self._guards):
            for optimizer in parts.optimizers:
                optimizer.step()
        if finite:
            self._try(self._report_step, micro, loss, norm, rate)
        else:
            self._skipped += 1
            self._try(self._report_skip, micro, loss, rate)
        if scaler is not None:
            scaler.update()
        self._gradients.clear()
        if self._schedule == "step":
            rates.advance(self._parts.schedulers)
        if self._due.slow:
            time.sleep(9 * (self._compute + time.perf_counter() - self._entered))
        self._loss, self._micros, self._wait, self._compute = None, 0, 0.0, 0.0
        self._ranks.file.enter(rank_file.SCRIPT)

    def _report_step(self, micro, loss, norm, rate):
        seconds = (self._wait, self._compute + time.perf_counter() - self._entered)
        event = introduction.describe_step(self._step, self._position, micro, self._micros, seconds)
        event.update(loss=loss, lr=rate, grad_norm=norm)
        if self._metrics:
            event["metrics"], self._metrics = self._metrics, {}
        self._send(event)

    def _report_skip(self, micro, loss, rate):
        scaler = self._parts.scaler
        in_loss = not math.isfinite(loss)
        event = introduction.describe_skip(self._step, self._position, micro, rate, "loss" if in_loss else "gradient")
        named = ((self._names.get(id(parameter)), parameter) for parameter in self._gradients.parameters())
        event.update({"where": "step {}".format(self._step)} if in_loss else gradients.describe_non_finite(named))
        if scaler is not None and not in_loss and scaler.get_scale() > 1.0:
            event["rescaled"] = True
        if scaler is None and not self._guards:
            event["applied"] = True
        self._send(event)

    # Step borders.

    def _at_border(self):
        if self._trial:
            self._send_fingerprint()
        companion = self._companion
        if self._modules:
            # Now, because the first step may import more.
            if self._ranks.rank == 0:
                standby.record(self._modules)
            self._modules = None
        save, stop = self._agreement.decide(self._step, self._plan)
        if stop:
            self._stop_if_saved(save)
        elif save:
            self._saver.request(*self._moment())

    def _plan(self, step):
        """Returns (save, stop) for the border after `step`, for all ranks."""
        save, stop = border.hear(self._companion)
        return save or (not stop and self._saver.is_due(step)), stop

    def _stop_if_saved(self, save):
        failure = self._saver.save(*self._moment()) if save else None
        if failure is None and not self._companion.withdrew_before(self._step):
            self._stop(save)
        elif failure is not None and not self._companion.stop_withdrawn():
            self._send({"event": "stop_refused", "step": self._step, "message": failure})

    def _stop(self, saved):
        self._ended = True
        self._saver.wait_written()
        self._send({"event": "stopping", "step": self._step, "saved": saved})
        self._companion.flush()
        report.stop_process()

    def _finish(self):
        """The last step of the run is taken: makes it durable. If the disk refuses it, the script fails."""
        self._ended = True
        report.release("loop")
        if self._metrics:
            self.evaluated(**self._metrics)
        self._try(self._save_last)
        self._ranks.file.enter(rank_file.ENDED)
        self._send({"event": "ended", "step": self._step})

    def _save_last(self):
        if self._step and self._saver.can_save:
            blame.make_last_durable(self._step, lambda: self._saver.save(*self._moment()))

    def _moment(self):
        """Returns the step, the clock and the header of a save at this border."""
        return self._step, self._position["samples"], self._header()

    def _header(self):
        return {
            "step": self._step,
            "skipped": self._skipped,
            "seed": self._seed,
            "position": dict(self._position),
            "source": self._source.state(),
            "initial_rate": rates.initial(self._parts.optimizers),
            "knobs": self._knobs_in_force(),
        }

    def _send_fingerprint(self):
        event = introduction.fingerprint(self._step, self._ids, rates.current(self._parts.optimizers), self._parts.scaler)
        self._ids = []
        self._send(event)

    # Beginning.

    def _find_seed(self, own):
        """Returns the seed of the order: the run file's, the script's, or the one of its `torch.manual_seed`.

        Unlike that of torch, it must be the same in every rank.
        """
        companion = self._companion
        if own is None and self._ranks.world == 1:
            own = order.torch_seed()
        elif own is None:
            own = 0 if companion is None else companion.seed
        seed = own if companion is None else knobs.find_seed(companion, own)
        if not isinstance(seed, int):
            raise ConfigError("the seed is a whole number, not {!r}".format(seed))
        return seed

    def _restore(self, resume):
        if not resume or resume.get("kind") != "container":
            return
        kept = snapshot.read(resume["path"], self._ranks)
        snapshot.restore(self._parts, kept)
        self._kept = kept
        self._other_world = kept.world if kept.world != self._ranks.world else None
        self._restore_position(kept)
        self._resumed_from = self._step
        excepthook.set_step(self._step)

    def _restore_position(self, kept):
        try:
            self._step, self._skipped = int(kept.loop["step"]), int(kept.loop["skipped"])
            self._position = {name: int(kept.loop["position"][name]) for name in ("epoch", "offset", "samples")}
            self._seed = int(kept.loop["seed"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("the checkpoint has no position: {}".format(error)) from error

    def _restore_random(self):
        """The last moment before the loop goes on: nothing draws between this and the body."""
        kept, self._kept = self._kept, None
        if self._other_world:
            # The state of rank 0 would make all ranks draw alike.
            order.seed_libraries(order.derive(self._seed, "rank", self._ranks.rank, self._step))
            return
        missing = snapshot.restore_random(kept)
        if missing is not None:
            self._send({"event": "note", "level": "warn", "text": missing})

    def _introduce(self):
        companion, source = self._companion, self._source
        self._ranks.begin(companion, self._step)
        self._saver = saver.Saver(companion, snapshot.Capture(self._parts), self._resumed_from, self._ranks)
        self._agreement = border.Agreement(companion.attempt_dir, self._ranks.rank, self._ranks.world)
        obstacle = self._saver.check(self._header())
        event = introduction.describe_source(source, self._position, self._step, obstacle, self._other_world)
        event.update(
            guards=self._guards, parameters=self._parts.count_parameters(), resumed_from=self._resumed_from,
            knobs=self._knobs_in_force(), stacks_signal=self._stacks[0], stacks_file=self._stacks[1],
            rank_file=self._ranks.file.path, sharded=are_sharded(self._parts.models),
        )  # fmt: skip
        companion.send(event)
        self._send({"event": "phase", "phase": "training"})

    def _knobs_in_force(self):
        return introduction.knobs_in_force(self._source, self._clip, rates.initial(self._parts.optimizers))

    def _knob(self, name, default):
        return default if self._companion is None else self._companion.knob(name, default)

    def _samples_now(self):
        """Returns the clock after the present step, also in the body of its last batch."""
        pending = self._current.step_samples if self._stepped and self._current is not None else 0
        return self._position["samples"] + pending

    def _send(self, event):
        """Sends an event of the training: rank 0 speaks for all."""
        if self._companion is not None and self._ranks.rank == 0:
            self._companion.send(event)

"""One `Trainer.fit` of Lightning: its steps, its guard, its saves and its end."""

from __future__ import annotations

import math
import os
import sys
import time

from downshift_cockpit import excepthook, fetch, gradients, knobs, lightning_checkpoint, lightning_epochs, loader_state, random_state
from downshift_cockpit import rank_file, report
from downshift_cockpit.border import Border
from downshift_cockpit.inject import NOTHING, Faults, poison
from downshift_cockpit.optimizer_hook import slow_down
from downshift_cockpit.position import Position
from downshift_cockpit.shield import shielded

LOSSES = ("loss", "loss_epoch")


class Training:
    """A training of Lightning's Trainer, from the call of `fit` to its return."""

    def __init__(self, trainer, module, companion):
        self.trainer, self.companion = trainer, companion
        self.number = report.next_training()
        self.report = report.Report(companion, "lightning", _find_version(module))
        self.checkpoints = lightning_checkpoint.Checkpoints(self)
        self.faults = Faults.of(companion)
        self.off = self.save_due = self.stop_due = self.waits = False
        self.border = self.states = self.module_hook = None
        seed = knobs.find_seed(companion, os.environ.get("PL_GLOBAL_SEED") or companion.seed)
        self.seeding = fetch.activate(Seeding(trainer, int(seed), companion.trial))
        loader_state.install(sys.modules["torch.utils.data"].DataLoader)
        # Last: a save at a border holds the state of all other callbacks behind it.
        self.callback = _callback_class(module.Callback)(self)
        trainer.callbacks.append(self.callback)
        self.epochs = lightning_epochs.Epochs(trainer, self.before_epoch, self.after_epoch)
        self._begin_step()

    def end(self):
        """Reports the end of a training that ended by itself."""
        interrupted = str(getattr(self.trainer.state, "status", "")).endswith("interrupted")
        if self.border is not None and not self.border.terminated and not interrupted:
            self.report.ended(self.trainer.global_step)

    def leave(self):
        """Takes all hooks away."""
        fetch.deactivate()
        self.checkpoints.leave()
        self.epochs.leave()
        if self.callback in self.trainer.callbacks:
            self.trainer.callbacks.remove(self.callback)
        if self.module_hook is not None:
            self.module_hook.__dict__.pop("on_train_batch_end", None)
        self.report.finish()
        report.release("lightning")

    def guards(self):
        name = type(self.trainer.strategy).__name__
        return "DeepSpeed" not in name and "FSDP" not in name

    # Borders, called by the callback.

    @shielded
    def on_load_checkpoint(self, checkpoint):
        self.epochs.resumes = self.checkpoints.resumed_from is not None
        lightning_epochs.count_epochs(checkpoint)

    @shielded
    def on_train_start(self, module):
        trainer = self.trainer
        self.checkpoints.apply_rate()
        self.report.rank, self.report.world = trainer.global_rank, trainer.world_size
        self.border = Border(self.companion, self.report.rank, self.report.world, trainer.global_step)
        loaders = self.seeding.loaders()
        self.position = self._find_position(loaders)
        grade, reason = self.checkpoints.grade(loaders)
        steps = trainer.estimated_stepping_batches
        total = int(steps) if math.isfinite(steps) else None
        resumed_from = self.report.resumed_from(self.checkpoints.resumed_from, trainer.global_step)
        self.report.hello(
            grade=grade, reason=reason, saves=True, guards=self.guards(),
            parameters=report.count_parameters(module.parameters()), resumed_from=resumed_from,
            samples=self.position.samples(trainer.global_step), total_steps=total,
            epoch_units=self.position.samples_per_epoch,
            total_units=None if total is None else self.position.samples(total),
            knobs=knobs.of_lightning(trainer, loaders[0] if loaders else None),
        )  # fmt: skip
        self.report.record_modules()
        self.report.phase("training")
        self._wrap_module(module)

    def on_train_batch_start(self):
        self.before_batch()
        if self.first and not self.off:
            self.first = False
            # Not shielded: an injected fault is to end the script.
            self.due = self.faults.strike(self.trainer.global_step + 1)

    @shielded
    def before_epoch(self):
        if self.epochs.is_between():
            self._restore_random()

    @shielded
    def before_batch(self):
        # The first batch is fetched: nothing stands between the border that was saved and this point.
        self._restore_random()
        self.report.enter(rank_file.COMPUTE)
        now = time.perf_counter()
        self.wait += now - self.waiting_since
        self.started = self.started or now
        self.batches += 1
        excepthook.set_step(self.trainer.global_step + 1)

    @shielded
    def on_before_optimizer_step(self, module, optimizer):
        found = gradients.Gradients([optimizer])
        if self.due.nan:
            poison(found.parameters())
        self.stepped, self.rate = True, knobs.rate(optimizer)
        norm = found.norm() if self.guards() else None
        self.norm = None if norm is None else float(norm)
        if norm is None or math.isfinite(self.norm):
            return
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        dropped = not scaled and self.companion.skip_non_finite
        place = gradients.describe_non_finite(module.named_parameters())
        self.bad = {"what": "gradient", **place, "rescaled": scaled, "applied": not scaled and not dropped}
        if dropped:
            found.clear()

    @shielded
    def on_train_batch_end(self, outputs):
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.losses.append(loss.detach())

    @shielded
    def after_batch(self):
        """The border: behind the module's own hook, which is the last that sees the batch."""
        self.waiting_since = time.perf_counter()
        if not self.stepped:
            return
        step = self.trainer.global_step
        if self.due.slow:
            slow_down(self.waiting_since - (self.started or self.waiting_since))
        self._report_step(step)
        self.border.notice_sigterm()
        save, stop = self.border.decide(step)
        self.save_due, self.stop_due = self.save_due or save, self.stop_due or stop
        self._begin_step()
        if not self.epochs.end_now() and not self._waits_for_validation():
            self._carry_out(step)

    @shielded
    def after_epoch(self):
        """The border behind the last step of an epoch. After the last epoch nothing is left to stop."""
        step = self.trainer.global_step
        if self.border is None:
            return
        if not self.epochs.are_over():
            self._carry_out(step)
        elif self.save_due:
            self.checkpoints.save_last(step, self.position.samples(step))

    @shielded
    def on_validation_start(self):
        if not self.trainer.sanity_checking:
            self.report.phase("evaluating")

    @shielded
    def on_validation_end(self):
        if self.trainer.sanity_checking or self.border is None:
            return
        step, found = self.trainer.global_step, {}
        for name, value in self.trainer.callback_metrics.items():
            for prefix in ("val", "valid", "validation", "eval"):
                if name.startswith((prefix + "_", prefix + "/")) and math.isfinite(float(value)):
                    found[name[len(prefix) + 1 :]] = float(value)
        loss = next((found.pop(name) for name in LOSSES if name in found), None)
        self.report.eval(step, self.position.samples(step), loss, found)
        self.report.phase("training")
        self.waiting_since = time.perf_counter()

    # Parts.

    def _begin_step(self):
        self.losses, self.norm, self.rate, self.bad = [], None, None, None
        self.wait, self.started, self.batches, self.stepped, self.first = 0.0, None, 0, False, True
        self.due, self.waiting_since = NOTHING, time.perf_counter()

    def _report_step(self, step):
        torch = sys.modules["torch"]
        samples, epoch = self.position.samples(step), self.position.epoch(step)
        loss = float(torch.stack([loss.float() for loss in self.losses]).sum()) if self.losses else None
        if self.bad is None and loss is not None and not math.isfinite(loss):
            self.bad = {"what": "loss", "where": "the step's mean", "rescaled": False, "applied": True}
        if self.bad is not None:
            self.report.skipped(step, samples, epoch=epoch, lr=self.rate or 0.0, **self.bad)
        else:
            self.report.step(
                step, samples, epoch=epoch, loss=loss, lr=self.rate, grad_norm=self.norm, micro_batches=self.batches,
                data_wait_ms=self.wait * 1000.0, compute_ms=(time.perf_counter() - self.started) * 1000.0,
            )  # fmt: skip
        if self.companion.trial:
            from downshift_cockpit import order

            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            ids = order.hash_indices(self.seeding.take_ids(self.batches))
            self.report.fingerprint(step, ids, self.rate, scaler.get_scale() if scaler else None)

    def _carry_out(self, step):
        """Saves and stops, as far as either is due."""
        save, stop = self.save_due, self.stop_due
        self.save_due = self.stop_due = self.waits = False
        if save:
            self.checkpoints.save_on_order(step, self.position.samples(step), stop)
        elif stop:
            self.report.stopping(step, False)
            report.stop_process()
        self.waiting_since = time.perf_counter()

    def _waits_for_validation(self):
        """Reports whether this border is passed over, once: a resume from before a validation would leave it out."""
        is_due = self.save_due or self.stop_due
        self.waits = is_due and not self.waits and self._validates_now()
        return self.waits

    def _validates_now(self):
        """Reports whether a validation follows this batch, as Lightning will decide."""
        loop = self.trainer.fit_loop
        try:
            return bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))
        except (AttributeError, TypeError):
            return False

    def _restore_random(self):
        states, self.states = self.states, None
        missing = None if states is None else random_state.restore(states)
        if missing is not None:
            self.companion.note(missing)

    def _find_position(self, loaders):
        trainer, loader = self.trainer, loaders[0] if loaders else None
        accumulation = trainer.accumulate_grad_batches
        per_step = (getattr(loader, "batch_size", None) or 1) * accumulation * trainer.world_size
        batches = trainer.num_training_batches
        try:
            samples = len(loader.dataset)
        except (AttributeError, TypeError):
            samples = None
        if not math.isfinite(batches):
            return Position.of_steps(1 << 40, per_step)
        whole = int(batches) * per_step // accumulation
        return Position.of_batches(int(batches), accumulation, per_step, whole if samples is None else samples)

    def _wrap_module(self, module):
        original = module.on_train_batch_end

        def on_train_batch_end(*args, **kwargs):
            result = original(*args, **kwargs)
            self.after_batch()
            return result

        self.module_hook = module
        module.__dict__["on_train_batch_end"] = on_train_batch_end


class Seeding(fetch.Seeding):
    """Seeds by Lightning's own epoch, and records the ids of its training loaders."""

    def __init__(self, trainer, seed, record):
        super().__init__(seed, record)
        self._trainer = trainer
        self.changed = None

    def key_of(self, loader):
        self.epoch = -1 if self._trainer.sanity_checking else self._trainer.current_epoch
        return super().key_of(loader)

    def recorder(self, loader):
        trains = self.record and any(loader is known for known in self.loaders())
        return self.requested if trains else None

    def loaders(self):
        """Returns the training's loaders, as far as they are made."""
        combined = getattr(self._trainer.fit_loop, "_combined_loader", None)
        return [] if combined is None else list(combined.flattened)

    def batches_ahead(self):
        """Returns the batches that Lightning fetched ahead, to know which is the last."""
        return len(getattr(self._trainer.fit_loop._data_fetcher, "batches", ()))

    def batch_size_changed(self, before, now, exact):
        """Counts Lightning's progress in batches of the new size."""
        if not exact:
            self.changed = "script", "the position is not a multiple of the new micro-batch, so the epoch starts over"
            return
        self.changed = "same_data", "training.micro_batch changed from {} to {}".format(before, now)
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        for count in (progress.current, progress.total):
            open_batches = count.processed - count.completed
            count.ready = count.started = count.processed = count.processed * before // now
            count.completed = count.processed - open_batches


def _find_version(module):
    package = module.__name__.split(".")[0]
    return report.version_of(package)


def _callback_class(base):
    class DownshiftCallback(base):
        def __init__(self, training):
            self.training = training

        def state_dict(self):
            return _encode(random_state.capture())

        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            self.training.on_load_checkpoint(checkpoint)

        def load_state_dict(self, state):
            self.training.states = _decode(state)

        def on_train_start(self, trainer, pl_module):
            self.training.on_train_start(pl_module)

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.training.on_train_batch_start()

        def on_before_optimizer_step(self, trainer, pl_module, optimizer, *args):
            self.training.on_before_optimizer_step(pl_module, optimizer)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.training.on_train_batch_end(outputs)

        def on_validation_start(self, trainer, pl_module):
            self.training.on_validation_start()

        def on_validation_end(self, trainer, pl_module):
            self.training.on_validation_end()

    return DownshiftCallback


def _encode(states):
    """Returns random states as tensors and plain values, which torch loads without running code."""
    torch, numpy = sys.modules["torch"], states["numpy"]
    kept = dict(states, python=[states["python"][0], list(states["python"][1]), states["python"][2]], numpy=None)
    if numpy is not None and "key" in numpy.get("state", {}):
        key = torch.tensor([int(word) for word in numpy["state"]["key"]], dtype=torch.int64)
        kept["numpy"] = [key, numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]]
    return kept


def _decode(kept):
    states = dict(kept, python=(kept["python"][0], tuple(kept["python"][1]), kept["python"][2]))
    if kept["numpy"] is not None:
        import numpy

        key, position, has_gauss, gauss = kept["numpy"]
        words = numpy.array(key.tolist(), dtype=numpy.uint32)
        states["numpy"] = {
            "bit_generator": "MT19937", "state": {"key": words, "pos": position}, "has_gauss": has_gauss, "gauss": gauss,
        }  # fmt: skip
    return states

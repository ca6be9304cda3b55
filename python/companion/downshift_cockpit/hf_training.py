"""One `Trainer.train`: its steps, its guard, its saves and its end."""

from __future__ import annotations

import math
import sys
import time

from downshift_cockpit import excepthook, fetch, gradients, hf_checkpoint, knobs, rank_file, report
from downshift_cockpit.border import Border
from downshift_cockpit.inject import NOTHING, Faults, poison
from downshift_cockpit.optimizer_hook import slow_down
from downshift_cockpit.position import Position
from downshift_cockpit.shield import shielded

TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class Training:
    """A training of the Trainer, from the call of `train` to its return."""

    def __init__(self, trainer, module, companion):
        self.trainer, self.companion = trainer, companion
        self.number = report.next_training()
        self.report = report.Report(companion, "transformers", report.version_of("transformers"))
        self.checkpoints = hf_checkpoint.Checkpoints(self)
        self.faults = Faults.of(companion)
        self.off = False
        self.border = self.pending = None
        self.evaluating = False
        self._kept = {}
        own = trainer.args.data_seed if trainer.args.data_seed is not None else trainer.args.seed
        seed = knobs.find_seed(companion, own)
        self.seeding = fetch.activate(fetch.Seeding(int(seed), companion.trial))
        self.clipping = gradients.ClippingHook()
        self.callback = _callback_class(module.TrainerCallback)(self)
        trainer.add_callback(self.callback)
        self._wrap("training_step", self._wrap_training_step)
        self._wrap("get_batch_samples", self._wrap_get_batch_samples)
        self._wrap("_get_grad_norm", self._wrap_get_grad_norm)
        self._wrap("_save_checkpoint", self.checkpoints.wrap_save)
        self._wrap("_maybe_log_save_evaluate", self.checkpoints.wrap_after_step)
        self._begin_step()

    def end(self):
        """Reports the end of a training that ended by itself."""
        if self.border is not None and not self.border.terminated:
            self.report.ended(self.trainer.state.global_step)

    def leave(self):
        """Takes all hooks away."""
        fetch.deactivate()
        self.clipping.remove()
        self.trainer.remove_callback(self.callback)
        for name, value in self._kept.items():
            if value is None:
                self.trainer.__dict__.pop(name, None)
            else:
                self.trainer.__dict__[name] = value
        self.report.finish()
        report.release("transformers")

    # Borders, called by the callback.

    @shielded
    def on_train_begin(self, state, loader, optimizer, scheduler):
        self.checkpoints.apply_rate(state.global_step, optimizer, scheduler)
        self.border = Border(self.companion, self.report.rank, self.report.world, state.global_step)
        self.optimizer, self.gradients = optimizer, gradients.Gradients([optimizer])
        if self.companion.skip_non_finite and self._guards():
            self.clipping.install()
        self.position = _find_position(self.trainer, loader, state)
        self.epoch = state.global_step // self.position.steps_per_epoch - 1
        self._introduce(state, loader)
        self.report.record_modules()
        self.report.phase("training")

    @shielded
    def on_epoch_begin(self):
        self.epoch += 1
        self.seeding.begin_epoch(self.epoch)

    def on_step_begin(self, state):
        self.before_step(state.global_step + 1)
        if not self.off:
            # Not shielded: an injected fault is to end the script.
            self.due = self.faults.strike(state.global_step + 1)

    @shielded
    def before_step(self, step):
        self._flush_step()
        self.report.enter(rank_file.COMPUTE)
        excepthook.set_step(step)

    @shielded
    def on_pre_optimizer_step(self, state, model):
        loss, norm = self._read()
        self.values = (loss, norm)
        self.rate = knobs.rate(self.optimizer)
        scaled = self._is_scaled()
        bad = (norm is not None and not math.isfinite(norm)) or (
            self.report.world == 1 and loss is not None and not math.isfinite(loss)
        )
        if not bad:
            return
        what = "loss" if loss is not None and not math.isfinite(loss) else "gradient"
        applied = not scaled and not (self.companion.skip_non_finite and self._guards())
        self.bad = {"what": what, **self._find_place(what, model), "rescaled": scaled, "applied": applied}
        if not scaled and not applied:
            self.gradients.clear()

    @shielded
    def on_step_end(self, args, state, control):
        if self.due.slow:
            slow_down(time.perf_counter() - (self.started or time.perf_counter()))
        self._queue_step(state)
        self._fingerprint(state)
        if not control.should_log:
            self._flush_step()
        self.border.notice_sigterm()
        save, stop = self.border.decide(state.global_step)
        if stop and not save:
            self._flush_step()
            self.report.stopping(state.global_step, False)
            report.stop_process()
        if save:
            self.checkpoints.order(stop, control.should_save)
            control.should_save = True
        self._begin_step()

    @shielded
    def on_log(self, logs):
        if self.pending is not None and logs and "train_runtime" not in logs and not _is_evaluation(logs):
            known = ("loss", "grad_norm", "learning_rate", "epoch", "step")
            self.pending[1]["metrics"] = _numbers({key: value for key, value in logs.items() if key not in known})
            self._flush_step()

    @shielded
    def on_prediction_step(self):
        if self.trainer.is_in_train and not self.evaluating:
            self._flush_step()
            self.evaluating = True
            self.report.phase("evaluating")

    @shielded
    def on_evaluate(self, state, metrics):
        if not self.trainer.is_in_train:
            return
        self._flush_step()
        self.evaluating = False
        plain = {key[5:] if key.startswith("eval_") else key: value for key, value in (metrics or {}).items()}
        plain = {key: value for key, value in plain.items() if key != "epoch" and not key.endswith(TIMES)}
        found = _numbers(plain)
        self.report.eval(state.global_step, self.position.samples(state.global_step), found.pop("loss", None), found)
        self.report.phase("training")

    @shielded
    def on_train_end(self):
        self._flush_step()

    # Parts.

    def _introduce(self, state, loader):
        grade, reason = self.checkpoints.grade(loader)
        self.report.hello(
            grade=grade, reason=reason, saves=self.checkpoints.can_save(), guards=self._guards(),
            parameters=report.count_parameters(self.trainer.model.parameters()),
            resumed_from=self.report.resumed_from(self.checkpoints.resumed_from, state.global_step),
            samples=self.position.samples(state.global_step), total_steps=state.max_steps,
            epoch_units=self.position.samples_per_epoch, total_units=self.position.samples(state.max_steps), knobs=knobs.of_trainer(self.trainer, self.optimizer),
        )  # fmt: skip

    def _guards(self):
        return not (self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled)

    def _is_scaled(self):
        return getattr(self.trainer.accelerator, "scaler", None) is not None

    def _begin_step(self):
        self.losses, self.norm, self.rate, self.bad = [], None, None, None
        self.values, self.wait, self.started, self.batches = (None, None), 0.0, None, 0
        self.due = NOTHING

    def _read(self):
        """Reads loss and norm from the device, at once where they lie on the same."""
        torch, norm = sys.modules["torch"], self.norm
        if norm is None and self._guards() and not self._is_scaled():
            norm = self.gradients.norm()
        if not self.losses:
            return None, None if norm is None else float(norm)
        loss = self.losses[0] if len(self.losses) == 1 else torch.stack([loss.float() for loss in self.losses]).sum()
        if torch.is_tensor(norm) and norm.device == loss.device and type(norm) is torch.Tensor:
            return tuple(torch.stack([loss.float().reshape(()), norm.float().reshape(())]).tolist())
        return float(loss), None if norm is None else float(norm)

    def _find_place(self, what, model):
        if what == "loss":
            broken = (index for index, loss in enumerate(self.losses, 1) if not math.isfinite(float(loss)))
            return {"where": "micro-batch {}".format(next(broken, len(self.losses)))}
        if not self.clipping.is_installed:
            # Clipping has spread the NaN to all gradients.
            return {"where": "the gradient's norm"}
        return gradients.describe_non_finite(model.named_parameters())

    def _queue_step(self, state):
        step, now = state.global_step, time.perf_counter()
        epoch, samples = self.position.epoch(step), self.position.samples(step)
        if self.bad is not None:
            self.report.skipped(step, samples, epoch=epoch, lr=self.rate or 0.0, **self.bad)
            return
        loss, norm = self.values
        fields = {
            "epoch": epoch, "loss": loss, "lr": self.rate, "grad_norm": norm, "micro_batches": len(self.losses),
            "data_wait_ms": self.wait * 1000.0, "compute_ms": (now - (self.started or now)) * 1000.0,
        }  # fmt: skip
        self.pending = ((step, samples), fields)

    def _flush_step(self):
        if self.pending is not None:
            (place, fields), self.pending = self.pending, None
            self.report.step(*place, **fields)

    def _fingerprint(self, state):
        if self.companion.trial:
            from downshift_cockpit import order

            ids = order.hash_indices(self.seeding.take_ids(self.batches))
            scaler = getattr(self.trainer.accelerator, "scaler", None)
            self.report.fingerprint(state.global_step, ids, self.rate, scaler.get_scale() if scaler else None)

    # Wrappers on the instance, so that a subclass's own methods are wrapped too.

    def _wrap(self, name, make):
        original = getattr(self.trainer, name, None)
        if original is not None:
            self._kept[name] = self.trainer.__dict__.get(name)
            setattr(self.trainer, name, make(original))

    def _wrap_training_step(self, original):
        def training_step(*args, **kwargs):
            if self.started is None:
                self.started = time.perf_counter()
            loss = original(*args, **kwargs)
            self.losses.append(loss)
            if self.due.nan and not self.off:
                poison(self.trainer.model.parameters())
            return loss

        return training_step

    def _wrap_get_batch_samples(self, original):
        def get_batch_samples(*args, **kwargs):
            begin = time.perf_counter()
            self.report.enter(rank_file.DATA)
            result = original(*args, **kwargs)
            self.report.enter(rank_file.SCRIPT)
            self.wait += time.perf_counter() - begin
            self.batches = len(result[0])
            return result

        return get_batch_samples

    def _wrap_get_grad_norm(self, original):
        def get_grad_norm(*args, **kwargs):
            self.norm = original(*args, **kwargs)
            return self.norm

        return get_grad_norm


def _find_position(trainer, loader, state):
    args = trainer.args
    if hasattr(trainer, "get_total_train_batch_size"):
        per_step = trainer.get_total_train_batch_size(args)
    else:
        per_step = trainer._train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)
    try:
        batches = len(loader)
    except TypeError:
        return Position.of_steps(state.max_steps, per_step)
    return Position.of_batches(batches, args.gradient_accumulation_steps, per_step, trainer.num_examples(loader))


def _callback_class(base):
    class DownshiftCallback(base):
        def __init__(self, training):
            self.training = training

        def on_train_begin(
            self, args, state, control, train_dataloader=None, optimizer=None, lr_scheduler=None, **kwargs
        ):
            self.training.on_train_begin(state, train_dataloader, optimizer, lr_scheduler)

        def on_epoch_begin(self, args, state, control, **kwargs):
            self.training.on_epoch_begin()

        def on_step_begin(self, args, state, control, **kwargs):
            self.training.on_step_begin(state)

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            self.training.on_pre_optimizer_step(state, model)

        def on_step_end(self, args, state, control, **kwargs):
            self.training.on_step_end(args, state, control)

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.training.on_log(logs)

        def on_prediction_step(self, args, state, control, **kwargs):
            self.training.on_prediction_step()

        def on_evaluate(self, args, state, control, metrics=None, **kwargs):
            self.training.on_evaluate(state, metrics)

        def on_train_end(self, args, state, control, **kwargs):
            self.training.on_train_end()

    return DownshiftCallback


def _is_evaluation(logs):
    return any(key.startswith("eval_") for key in logs)


def _numbers(values):
    found = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            found[name] = number
    return found

"""Checkpoints of the Hugging Face Trainer: on order, complete before they are reported, and chosen on resume.

Beside the Trainer's own files lies `downshift.json`: which training of the process this is, its position and its knobs.
The Trainer keeps the random states; the streams of data loading need no state (see fetch.py).
"""

from __future__ import annotations

import json
import os
import shutil
import sys

from downshift_cockpit import blame, fetch, knobs, rates, report
from downshift_cockpit.excepthook import CheckpointError

FILE = "downshift.json"
KEPT = 3


class Checkpoints:
    """The checkpoints of one training."""

    def __init__(self, training):
        self._training = training
        self._trainer, self._companion = training.trainer, training.companion
        self.resumed_from = None
        self._resumed = None
        self._ordered = self._stop = self._asked_by_script = False
        self._written = self._failure = None
        self._on_order = []

    def choose(self, given):
        """Returns the checkpoint to resume from."""
        resume = self._companion.resume or {}
        path = resume.get("path")
        if resume.get("kind") != "script" or not path:
            return given
        if not os.path.isdir(path):
            raise CheckpointError("{} is gone: the run cannot continue from it".format(path))
        notes = _read_notes(path)
        number = notes.get("training", 0)
        if number != self._training.number:
            # An earlier training of a script that trains several times: it runs again, and is not counted again.
            self._training.report.muted = self._training.number < number
            return given
        if isinstance(given, str) and os.path.realpath(given) != os.path.realpath(path):
            text = "the script resumes from {}; downshift resumes from {} instead".format(given, path)
            self._companion.note(text, "info")
        self._resumed, self.resumed_from = notes, resume.get("step")
        return path

    def can_save(self):
        """Reports whether an order to save can be carried out."""
        return bool(self._trainer.args.output_dir)

    def grade(self, loader):
        """Returns the grade of a resume of this training, and what differs."""
        trainer, notes = self._trainer, self._resumed
        if self._training.number > 0:
            return "script", "the script trains more than once; a restart repeats the trainings before"
        if not self._training._guards():
            return "script", "DeepSpeed and FSDP restore their own state"
        if trainer.args.ignore_data_skip:
            return "script", "ignore_data_skip begins the data anew"
        if hasattr(trainer, "_buffered_inputs"):
            return "same_data", "buffered generations are drawn again"
        limits = fetch.describe_limits(getattr(loader, "dataset", None))
        if limits is not None:
            return "script", limits
        if notes is not None and not notes:
            return "script", "the checkpoint was written without downshift"
        return self._compare(notes or {})

    def _compare(self, notes):
        now, args = knobs.of_trainer(self._trainer), self._trainer.args
        before = notes.get("knobs") or {}
        for name in ("training.micro_batch", "training.accumulation", "training.precision"):
            if name in before and before[name] != now.get(name):
                grade = "script" if name != "training.precision" and args.dataloader_drop_last else "same_data"
                return grade, "{} changed from {} to {}".format(name, before[name], now.get(name))
        if "seed" in notes and notes["seed"] != self._training.seeding.seed:
            return "script", "the seed changed: augmentations differ"
        return "exact", None

    def apply_rate(self, step, optimizer, scheduler):
        """Applies the rate that the script asks for now: the Trainer goes on with that of the checkpoint."""
        notes = (self._resumed or {}).get("rates")
        if not notes or not self._training._guards():
            return
        schedulers = [] if scheduler is None else [getattr(scheduler, "scheduler", scheduler)]
        rates.follow(self._companion, step, [optimizer], schedulers, notes)

    def order(self, stop, asked_by_script):
        """Expects the Trainer to save at this border."""
        self._ordered, self._stop, self._asked_by_script = True, stop, asked_by_script

    def wrap_save(self, original):
        """Wraps `_save_checkpoint`: names the phase, keeps a failed save on order from ending the training."""

        def save_checkpoint(*args, **kwargs):
            training = self._training
            if training.off:
                return original(*args, **kwargs)
            training.report.phase("checkpointing")
            folder = self._folder()
            existed = os.path.isdir(folder)
            try:
                result = self._save(original, args, kwargs)
            except Exception as error:
                if not self._ordered or training.report.world > 1:
                    raise
                blame.take(error)
                self._failure = error
                if not existed:
                    shutil.rmtree(folder, ignore_errors=True)
                return None
            if training.report.world > 1:
                # Each rank writes its own random state: the checkpoint is complete once all have.
                sys.modules["torch.distributed"].barrier()
            self._written = (self._trainer.state.global_step, folder)
            return result

        return save_checkpoint

    def wrap_after_step(self, original):
        """Wraps `_maybe_log_save_evaluate`, behind which all callbacks have seen the save."""

        def maybe_log_save_evaluate(*args, **kwargs):
            result = original(*args, **kwargs)
            if not self._training.off:
                self._after_save()
            return result

        return maybe_log_save_evaluate

    def _save(self, original, args, kwargs):
        """Saves. A checkpoint on order is a whole one, also where the script keeps only weights."""
        arguments = self._trainer.args
        only_model = getattr(arguments, "save_only_model", False)
        if self._ordered and only_model:
            arguments.save_only_model = False
        try:
            return original(*args, **kwargs)
        finally:
            if self._ordered and only_model:
                arguments.save_only_model = only_model

    def _folder(self):
        name = "checkpoint-{}".format(self._trainer.state.global_step)
        return os.path.join(self._trainer._get_output_dir(trial=None), name)

    def _after_save(self):
        ordered, stop, self._ordered, self._stop = self._ordered, self._stop, False, False
        written, failure, self._written, self._failure = self._written, self._failure, None, None
        if not ordered and written is None:
            return
        try:
            failure = self._report(written, failure, ordered, stop)
        except Exception as error:
            self._companion.quiet(error)
            self._training.off = True
            return
        state = self._trainer.state
        if failure is not None and blame.is_of_disk(failure) and state.global_step >= state.max_steps:
            # No later save would repeat it.
            raise blame.LastStepError(state.global_step, failure)
        if stop and failure is None and not self._stop_withdrawn():
            self._training.report.stopping(self._trainer.state.global_step, True)
            report.stop_process()

    def _report(self, written, failure, ordered, stop):
        """Reports a save. Returns why the training cannot stop here, or none."""
        training, step = self._training, self._trainer.state.global_step
        saved_step, folder = written or (None, None)
        # A save within a step (on SIGTERM, say) holds random states that belong to no border.
        if saved_step == step and (training.report.rank != 0 or self._is_complete(folder)):
            training.border.saved(step)
            ordered_only = ordered and not self._asked_by_script
            if training.report.rank == 0:
                self._write_notes(folder, ordered_only)
            training.report.wrote(step, training.position.samples(step), folder)
            if stop and training.report.world == 1:
                failure = self._companion.wait_published(step + training.report.step_offset)
            if ordered_only and training.report.rank == 0:
                _prune(self._on_order, folder)
        elif ordered:
            failure = failure or "the Trainer wrote no complete checkpoint"
            training.report.save_failed(step, failure)
        training.report.phase("training")
        if stop and failure is not None and not self._stop_withdrawn():
            training.report.stop_refused(step, str(failure))
        return failure

    def _stop_withdrawn(self):
        """Reports whether the training goes on after all. Several ranks cannot: each has decided by itself to stop."""
        return self._training.report.world == 1 and self._companion.stop_withdrawn()

    def _is_complete(self, folder):
        names = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if "trainer_state.json" not in names or "checkpoint-is-incomplete.txt" in names:
            return False
        return "optimizer.pt" in names or any(name.startswith(("global_step", "optimizer")) for name in names)

    def _write_notes(self, folder, ordered_only):
        training, step = self._training, self._trainer.state.global_step
        notes = {
            "training": training.number, "step": step, "samples": training.position.samples(step), "ordered": ordered_only,
            "seed": training.seeding.seed, "knobs": knobs.of_trainer(self._trainer),
            "rates": rates.describe([training.optimizer]),
        }  # fmt: skip
        partial = os.path.join(folder, FILE + ".new")
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(notes, file)
        os.replace(partial, os.path.join(folder, FILE))


def _prune(written, folder):
    """Removes checkpoints that this process wrote on order alone, except the newest. All others stay."""
    written.append(folder)
    for old in written[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    del written[:-KEPT]


def _read_notes(folder):
    try:
        with open(os.path.join(folder, FILE), encoding="utf-8") as file:
            notes = json.load(file)
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}

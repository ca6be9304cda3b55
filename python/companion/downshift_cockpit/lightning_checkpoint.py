"""Checkpoints of a Lightning training: whole files of Lightning's own in folders of the run, and their choice on resume."""

from __future__ import annotations

import json
import os
import shutil

from downshift_cockpit import blame, fetch, rates, report
from downshift_cockpit.excepthook import CheckpointError

FOLDER = "lightning"
NAME = "lightning.ckpt"
NOTES = "downshift.json"
KEPT = 3


class Checkpoints:
    """The checkpoints of one training."""

    def __init__(self, training):
        self._training = training
        self._trainer, self._companion = training.trainer, training.companion
        self._root = os.path.join(self._companion.run_dir or ".", FOLDER)
        self.resumed_from = self._notes = None
        self._written = []
        self._write = self._trainer.save_checkpoint
        self._trainer.__dict__["save_checkpoint"] = self._save_for_script

    def choose(self, given):
        """Returns the file to resume from."""
        resume = self._companion.resume or {}
        path = resume.get("path") or ""
        if resume.get("kind") != "script":
            return given
        if not os.path.exists(path):
            raise CheckpointError("{} is gone: the run cannot continue from it".format(path))
        file = path if os.path.isfile(path) else os.path.join(path, NAME)
        if not os.path.isfile(file):
            return given
        self._notes = _read_notes(path)
        number = self._notes.get("training", 0)
        if number != self._training.number:
            # An earlier training of a script that trains several times: it runs again, and is not counted again.
            self._training.report.muted = self._training.number < number
            return given
        if given is not None and os.path.realpath(str(given)) != os.path.realpath(file):
            text = "the script resumes from {}; downshift resumes from {} instead".format(given, file)
            self._companion.note(text, "info")
        self.resumed_from = resume.get("step")
        return file

    def grade(self, loaders):
        """Returns the grade of a resume of this training, and what differs."""
        training = self._training
        if training.number > 0:
            return "script", "the script trains more than once; a restart repeats the trainings before"
        if not training.guards():
            return "script", "DeepSpeed and FSDP restore their own state"
        for loader in loaders:
            if not hasattr(loader, "load_state_dict"):
                return "script", "the data comes from a {}, which does not keep its position".format(type(loader).__name__)
            limits = fetch.describe_limits(getattr(loader, "dataset", None))
            if limits is not None:
                return "script", limits
        if training.seeding.changed is not None:
            return training.seeding.changed
        accumulation = (self._notes or {}).get("accumulation")
        if self.resumed_from is not None and accumulation not in (None, self._trainer.accumulate_grad_batches):
            return "same_data", "the accumulation changed"
        return "exact", None

    def apply_rate(self):
        """Applies the rate that the script asks for now: Lightning goes on with that of the checkpoint."""
        notes = (self._notes or {}).get("rates")
        if not notes or not self._training.guards():
            return
        schedulers = [config.scheduler for config in self._trainer.lr_scheduler_configs]
        rates.follow(self._companion, self._trainer.global_step, self._trainer.optimizers, schedulers, notes)

    def leave(self):
        """Takes the hook away."""
        self._trainer.__dict__.pop("save_checkpoint", None)

    def _save_for_script(self, filepath, *args, **kwargs):
        """Saves as the script's callbacks ask. The run saves at the next border too: a resume from a file that Lightning
        writes within the end of an epoch or of a batch would leave out what follows there."""
        self._write(filepath, *args, **kwargs)
        if not (args[0] if args else kwargs.get("weights_only")):
            self._training.save_due = True

    def save(self, step, samples):
        """Writes a checkpoint. Returns its folder; raises OSError or RuntimeError if it cannot be written."""
        folder = os.path.join(self._root, "step-{:09d}".format(step))
        partial = os.path.join(self._root, ".new-step-{:09d}".format(step))
        first = self._training.report.rank == 0
        if first:
            shutil.rmtree(partial, ignore_errors=True)
            os.makedirs(partial)
        try:
            self._write(os.path.join(partial, NAME))
        except BaseException:
            if first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        if first:
            notes = {
                "training": self._training.number, "step": step, "samples": samples,
                "accumulation": self._trainer.accumulate_grad_batches, "seed": self._training.seeding.seed,
                "rates": rates.describe(self._trainer.optimizers),
            }  # fmt: skip
            with open(os.path.join(partial, NOTES), "w", encoding="utf-8") as file:
                json.dump(notes, file)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(partial, folder)
        return folder

    def save_last(self, step, samples):
        """Saves behind the last step, which no later save would repeat."""
        blame.make_last_durable(step, lambda: self._save_and_report(step, samples, False))

    def save_on_order(self, step, samples, stop):
        """Saves at a border, and ends the training if it is to stop."""
        reports, failure = self._training.report, self._save_and_report(step, samples, stop)
        # Several ranks stop in any case: each has decided so by itself.
        if stop and reports.world == 1 and self._companion.stop_withdrawn():
            return
        if stop and failure is not None:
            reports.stop_refused(step, str(failure))
        elif stop:
            reports.stopping(step, True)
            report.stop_process()

    def _save_and_report(self, step, samples, stop):
        """Returns why the training has no durable checkpoint to stop at, or none."""
        reports, failure = self._training.report, None
        reports.phase("checkpointing")
        try:
            folder = self.save(step, samples)
        except (OSError, RuntimeError) as error:
            if reports.world > 1:
                blame.let_end(error)
                raise
            blame.take(error)
            failure = error
            reports.save_failed(step, error)
        else:
            reports.wrote(step, samples, folder)
            self._training.border.saved(step)
            if stop and reports.world == 1:
                failure = self._companion.wait_published(step + reports.step_offset)
            if reports.rank == 0:
                self._prune(folder)
        reports.phase("training")
        return failure

    def _prune(self, folder):
        """Removes checkpoints that this process wrote, except the newest."""
        self._written.append(folder)
        for old in self._written[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        del self._written[:-KEPT]


def _read_notes(folder):
    try:
        with open(os.path.join(folder, NOTES), encoding="utf-8") as file:
            notes = json.load(file)
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}

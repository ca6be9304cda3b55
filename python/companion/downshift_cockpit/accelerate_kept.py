"""Keeps a loop around accelerate with no line changed: saves through `save_state` at a step border, continues with `load_state`
where the script does not do so itself, and with the batches that follow.

A pass is one iteration over a prepared loader. Its order and its samples follow from the seed, the data set and the number of the
pass (see fetch.py), so a position is two counts. They lie in `downshift.json` beside every state, whoever asked for it.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import shutil

from downshift_cockpit import batch_content, blame, border, fetch, knobs, order, report
from downshift_cockpit.accelerate_passes import Pass, Seeding, base_sampler, count_skipped, describe_limits
from downshift_cockpit.excepthook import CheckpointError
from downshift_cockpit.next_batch import NextBatch

FILE = "downshift.json"
KEPT = 3

# The state that the script loaded: its path and the position beside it.
_loaded = None
# The samples in the newest batch of any prepared loader, if they can be counted.
_samples = None
_find_loop = None
_accelerators = []


def install(module, find_loop):
    """Hooks into accelerate.data_loader and into accelerate.accelerator."""
    global _find_loop
    _find_loop = find_loop
    if module.__name__ == "accelerate.data_loader":
        for kind in (module.DataLoaderShard, module.DataLoaderDispatcher):
            _hook_loader(kind)
    else:
        _hook_states(module.Accelerator)


def _hook_loader(kind):
    original = kind.__iter__

    @functools.wraps(original)
    def __iter__(self):
        kept = _keep(self)
        return _count(original(self) if kept is None else kept.iterate(self, original))

    kind.__iter__ = __iter__


def _count(batches):
    """Passes batches on, and counts the samples in each."""
    global _samples
    for batch in batches:
        _samples = batch_content.count_samples(batch)
        yield batch


def samples_in_batch():
    """Returns the number of samples in the newest batch, or none if it cannot be counted."""
    return _samples


def _keep(loader):
    """Returns the loop that is kept, for a prepared loader that is about to be iterated; none if it is only watched."""
    owners = [accelerator for accelerator in _accelerators if _owns(accelerator, loader) and accelerator._optimizers]
    loop = _find_loop() if owners else None
    return None if loop is None else loop.keep(owners[0])


def _owns(accelerator, loader):
    return any(known is loader or known.dataset is loader.dataset for known in accelerator._dataloaders)


def _hook_states(accelerator):
    save, load, prepare = accelerator.save_state, accelerator.load_state, accelerator.prepare

    @functools.wraps(prepare)
    def noted_prepare(self, *args, **kwargs):
        if all(known is not self for known in _accelerators):
            _accelerators.append(self)
        return prepare(self, *args, **kwargs)

    @functools.wraps(save)
    def save_state(self, output_dir=None, *args, **kwargs):
        if output_dir is not None:
            # Of a state that was written there before.
            with contextlib.suppress(OSError):
                os.remove(os.path.join(output_dir, FILE))
        written = save(self, output_dir, *args, **kwargs)
        loop = _find_loop() if self._optimizers else None
        if loop is not None and loop.kept is not None:
            loop.kept.note_position(written or output_dir)
        return written

    @functools.wraps(load)
    def load_state(self, input_dir=None, *args, **kwargs):
        global _loaded
        result = load(self, input_dir, *args, **kwargs)
        if input_dir is not None:
            _loaded = (os.path.abspath(input_dir), _read(input_dir))
        return result

    accelerator.save_state, accelerator.load_state, accelerator.prepare = save_state, load_state, noted_prepare


def find_obstacle(companion, accelerator, world):
    """Returns why the companion cannot keep a loop around this accelerator, or none."""
    if not companion.states:
        return "the harness named no folder for states"
    if world > 1 or str(getattr(accelerator.distributed_type, "value", "")) != "NO":
        return "several processes restore their own state"
    if accelerator.project_configuration.automatic_checkpoint_naming:
        return "automatic_checkpoint_naming names the states itself"
    return None


class Kept:
    """A loop that is kept."""

    def __init__(self, loop, accelerator):
        self.loop, self.companion, self.accelerator = loop, loop.companion, accelerator
        self.seeding = fetch.activate(Seeding(int(knobs.find_seed(loop.companion, order.torch_seed()))))
        self.resumed_from = self.notes = self.limits = None
        # The pass of the newest batch, the one that the script trains on, and its data set.
        self._newest = self._training = self._dataset = None
        self._border = self._plan = None
        self._next = NextBatch(loop.companion.run_dir)
        self._is_resumed = self._restarts = False
        # Where the script passes over batches itself: those that it has been given after the first step, if it is right.
        self._wanted = None
        self._shift = 0
        self._on_order = _list_on_order(loop.companion.states)

    @property
    def tracks(self):
        """Whether the script trains on a loader whose passes are known."""
        return self._training is not None

    def trained(self):
        """Notes that the script trains on the newest batch. An evaluation between two of them is none of the training."""
        self._training = self._newest
        if self._training is not None:
            self._dataset = self._training.loader.dataset
            self._next.trains_on(self._training)

    # Passes.

    def iterate(self, loader, original):
        """Iterates a prepared loader for the script."""
        try:
            begun = self._begin(loader)
        except CheckpointError:
            raise
        except Exception as error:
            self.companion.quiet(error)
            begun = None
        if begun is None:
            self._newest = None
            yield from original(loader)
            return
        if self._is_over(loader):
            return
        for batch in original(loader):
            if self._is_over(loader):
                loader.end()
                return
            begun.served += 1
            self._newest = begun
            self._next.look_at(begun, loader.dataset is self._dataset)
            yield batch
            while begun.held and not self.loop.has_trained:
                # The script passes over batches by `continue`; it is to train on this one.
                begun.held -= 1
                yield batch
            begun.held = 0
            if self.loop.stepped and begun is self._training:
                self.loop.stepped = False
                self._at_border()

    def _begin(self, loader):
        """Begins a pass; returns none for a loader that is not followed."""
        self.limits = describe_limits(loader)
        if self.limits is not None:
            return None
        if not self._is_resumed:
            self._is_resumed = True
            self._resume()
        own, held = count_skipped(loader), 0
        if self._plan is not None and self._plan[0] is loader.dataset:
            (_, number, served), self._plan = self._plan, None
            self.seeding.begin(loader.dataset, number)
            if own:
                # It counts on by itself.
                self._restarts = False
                rest = len(base_sampler(loader)) - served
                self._wanted = served + min(rest, self.accelerator.gradient_accumulation_steps)
            elif served:
                loader.base_dataloader.__dict__["_downshift_restore"] = {"epoch": 0, "pass": number, "served": served}
                own, held, self.loop.has_trained = served, len(base_sampler(loader)), False
        else:
            number = self.seeding.begin(loader.dataset)
        if self.resumed_from is not None and loader.dataset is self._dataset:
            # A sampler of accelerate orders by it.
            loader.iteration = number + self._shift
        return Pass(loader, number, own, held)

    def _is_over(self, loader):
        """Reports whether the run has taken its last step, though the script counts on."""
        length = self.companion.length
        is_training = self.resumed_from is not None and loader.dataset is self._dataset
        return is_training and bool(length) and self.loop.step >= length

    # Resumes.

    def _resume(self):
        resume = self.companion.resume or {}
        if resume.get("kind") != "script":
            return
        by_script = _loaded is not None
        if not by_script and not _read(resume["path"]):
            # Nothing was loaded.
            self.loop.step = self.loop.samples = 0
            return
        if not by_script:
            try:
                self.accelerator.load_state(resume["path"])
            except Exception as error:
                message = "{} cannot be loaded: {}: {}"
                raise CheckpointError(message.format(resume["path"], type(error).__name__, error)) from error
        path, notes = _loaded
        if not notes:
            self.resumed_from = resume.get("step")
            return
        self.notes, self.resumed_from = notes, notes["step"]
        self._next.expect(notes)
        self.loop.step, self.loop.samples = notes["step"], notes["samples"]
        # The count of micro-batches: a border is where it begins, whatever the accumulation is now.
        self.accelerator.step = 0
        loader = self.accelerator._dataloaders[notes["loader"]]
        number, served = notes["pass"], self._served(notes, loader)
        if served >= len(base_sampler(loader)):
            number, served = number + 1, 0
        self._restarts = (not by_script or self.companion.counts_anew) and number > 0
        self._shift = notes["iteration"] - notes["pass"]
        self._dataset, self._plan = loader.dataset, (loader.dataset, number, served)
        if self._restarts and not self.companion.length:
            self.companion.note(
                "the script counts its epochs from the beginning again, and nothing tells how long the run is: it takes all of them "
                "once more; write `training.steps` into the run file"
            )

    def _served(self, notes, loader):
        before, now = notes["batch_size"], knobs.batch_size(loader)
        if not before or not now or before == now:
            return notes["served"]
        return notes["served"] * before // now

    def grade(self, in_force):
        """Returns the grade of the resume, and what differs."""
        if self.notes is None:
            return ("script", "the state was written without downshift") if self.companion.resume else ("exact", None)
        before, names = self.notes["knobs"], ("training.micro_batch", "training.accumulation", "training.precision")
        changed = [name for name in names if name in before and before[name] != in_force.get(name)]
        if self.notes["seed"] != self.seeding.seed:
            return "script", "the seed changed: the order of the data differs"
        more = 0 if self._wanted is None else self._training.served - self._wanted
        if more:
            message = "the script itself passed over {} more batches than were used" if more > 0 else (
                "the script itself passed over {} batches too few"
            )
            return "script", message.format(abs(more))
        # Batches of another size cannot be compared.
        doubt = None if "training.micro_batch" in changed else self._next.doubt
        if doubt is not None:
            return "script", doubt
        for name in changed:
            return "same_data", "{} changed from {} to {}".format(name, before[name], in_force.get(name))
        if self._restarts:
            return "same_data", "the script counts its epochs from the beginning again"
        if not self.accelerator._schedulers and self.loop.has_schedule:
            return "script", "the learning-rate schedule was not given to accelerator.prepare, so it begins again"
        return "exact", None

    # Borders and states.

    def _at_border(self):
        step = self.loop.step
        try:
            if self._border is None:
                self._border = border.Border(self.companion, step=self.resumed_from or 0)
            save, stop = self._border.decide(step)
            failure = self._save(step, stop) if save else None
            stops = stop and failure is None and not self.companion.stop_withdrawn()
        except Exception as error:
            self.companion.quiet(error)
            return
        if stops:
            self.loop.report.stopping(step, save)
            report.stop_process()
        elif stop and failure is not None and not self.companion.stop_withdrawn():
            self.loop.report.stop_refused(step, str(failure))

    def _save(self, step, stop):
        """Saves on order. Returns why it could not, or none."""
        folder = self.companion.states.replace("*", str(step))
        existed, reports = os.path.isdir(folder), self.loop.report
        reports.phase("checkpointing")
        try:
            self.accelerator.save_state(folder)
        except Exception as error:
            blame.take(error)
            if not existed:
                shutil.rmtree(folder, ignore_errors=True)
            reports.save_failed(step, error)
            reports.phase("training")
            return error
        self._border.saved(step)
        if not existed:
            self.note_position(folder, ordered=True)
            self._on_order.append(folder)
        reports.wrote(step, self.loop.samples, folder)
        failure = self.companion.wait_published(step) if stop else None
        for old in self._on_order[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        del self._on_order[:-KEPT]
        reports.phase("training")
        return failure

    def note_position(self, folder, ordered=False):
        """Writes the position beside a state. One that the script has not ordered may be removed."""
        begun = self._training
        if begun is None or folder is None:
            return
        try:
            datasets = [loader.dataset for loader in self.accelerator._dataloaders]
            notes = {
                "step": self.loop.step, "samples": self.loop.samples, "pass": begun.number, "served": begun.served,
                "loader": next(at for at, dataset in enumerate(datasets) if dataset is begun.loader.dataset),
                "iteration": begun.iteration, "batch_size": knobs.batch_size(begun.loader), "seed": self.seeding.seed,
                "knobs": knobs.of_accelerator(self.accelerator), "ordered": ordered, **self._next.describe(begun),
            }  # fmt: skip
            partial = os.path.join(folder, FILE + ".new")
            with open(partial, "w", encoding="utf-8") as file:
                json.dump(notes, file)
            os.replace(partial, os.path.join(folder, FILE))
        except Exception as error:
            self.companion.quiet(error)


def _list_on_order(pattern):
    """Returns the states that earlier processes wrote on order alone, the newest last."""
    found = glob.glob("*".join(glob.escape(part) for part in pattern.split("*")))
    ordered = [(notes["step"], folder) for folder in found for notes in [_read(folder)] if notes.get("ordered")]
    return [folder for _, folder in sorted(ordered)]


def _read(folder):
    try:
        with open(os.path.join(folder, FILE), encoding="utf-8") as file:
            notes = json.load(file)
    except (OSError, ValueError):
        return {}
    needed = {"step", "samples", "pass", "served", "loader", "iteration", "batch_size", "seed", "knobs"}
    return notes if isinstance(notes, dict) and needed <= set(notes) else {}

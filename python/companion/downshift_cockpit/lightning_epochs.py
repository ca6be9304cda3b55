"""The borders between two epochs of a Lightning training.

The last border of an epoch lies behind everything the epoch does at its end: validation, hooks, schedulers, checkpoints of
callbacks. A resume from it begins the next epoch as Lightning begins every epoch, with all its hooks.
"""

from __future__ import annotations


class Epochs:
    """Calls `before` and `after` around each epoch of a training."""

    def __init__(self, trainer, before, after):
        self._trainer, self._loop = trainer, trainer.fit_loop
        self._before, self._after = before, after
        self.resumes = False
        self._kept = {name: getattr(self._loop, name) for name in ("run", "on_advance_start", "on_advance_end")}
        self._loop.run, self._loop.on_advance_start, self._loop.on_advance_end = self._run, self._begin, self._end

    def leave(self):
        """Takes the hooks away."""
        for name in self._kept:
            self._loop.__dict__.pop(name, None)

    def end_now(self):
        """Reports whether no batch of this epoch follows the present one."""
        return self._loop.epoch_loop._is_training_done or self._stops_early()

    def are_over(self):
        """Reports, between two epochs, whether no other epoch follows."""
        trainer = self._trainer
        if self._stops_early() or 0 <= (trainer.max_steps or -1) <= trainer.global_step:
            return True
        return 0 <= (-1 if trainer.max_epochs is None else trainer.max_epochs) <= trainer.current_epoch

    def is_between(self):
        """Reports whether no epoch is under way."""
        progress = self._loop.epoch_progress.current
        return progress.ready == progress.processed

    def _stops_early(self):
        return self._trainer.should_stop and self._loop._can_stop_early

    def _knows_metrics(self):
        schedules = [config for config in self._trainer.lr_scheduler_configs if config.reduce_on_plateau]
        return all(config.monitor in self._trainer.callback_metrics for config in schedules)

    def _run(self):
        self._loop.setup_data()
        if not (self.resumes and self.is_between() and self.are_over()):
            return self._kept["run"]()
        # Lightning would return at once. The hooks at the end of the training have not run for the last step.
        self._loop.reset()
        self._loop.on_run_start()
        self._before()
        self._loop.on_run_end()

    def _begin(self):
        if self.is_between():
            # With `max_steps`, Lightning takes every resume for one within an epoch.
            self._loop._restarting = self._loop.epoch_loop.restarting = False
        self._before()
        self._kept["on_advance_start"]()

    def _end(self):
        if self._knows_metrics():
            # Lightning steps no scheduler by a metric in an epoch that was resumed: the metric may be missing.
            self._loop._restarting = False
        self._kept["on_advance_end"]()
        self._after()


def count_epochs(checkpoint):
    """Counts the epochs of a checkpoint by the position of its data, before Lightning reads them.

    Lightning takes a checkpoint from behind the last batch of an epoch for one from within that epoch. It then trains the
    next one without counting it as begun, and a later resume begins that epoch again.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    own, epochs, batches = (loop.get(name) for name in ("state_dict", "epoch_progress", "epoch_loop.batch_progress"))
    read = [state["epoch"] for state in (own or {}).get("combined_loader", ()) if "epoch" in state]
    if not read or not epochs or not batches:
        return
    begun = max(read) + 1
    within_batch = batches["current"]["completed"] < batches["current"]["processed"]
    is_over = epochs["current"]["processed"] >= begun or (within_batch and batches["is_last_batch"])
    finished = begun if is_over else begun - 1
    counts = {"ready": begun, "started": begun, "processed": finished, "completed": finished}
    for name, count in counts.items():
        epochs["total"][name] += count - epochs["current"][name]
    epochs["current"].update(counts)
    if is_over:
        # The next pass is a new one.
        del own["combined_loader"]

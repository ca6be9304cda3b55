"""Steps as samples: every epoch takes the same number of steps, the last of which may be short."""

from __future__ import annotations


class Position:
    """The length of an epoch in steps and samples, and the samples of a step."""

    def __init__(self, steps_per_epoch, samples_per_step, samples_per_epoch):
        self.steps_per_epoch = max(1, steps_per_epoch)
        self.samples_per_step = samples_per_step
        self.samples_per_epoch = samples_per_epoch

    @classmethod
    def of_batches(cls, batches, accumulation, samples_per_step, samples):
        """Returns the position for an epoch of `batches` on each rank, over a data set of `samples`."""
        consumed = batches * samples_per_step // accumulation
        return cls(-(-batches // accumulation), samples_per_step, min(samples, consumed))

    @classmethod
    def of_steps(cls, steps, samples_per_step):
        """Returns the position for data without a length: the whole training is one epoch."""
        return cls(steps, samples_per_step, max(1, steps) * samples_per_step)

    def samples(self, step):
        """Returns the samples consumed after `step`."""
        epochs, steps = divmod(step, self.steps_per_epoch)
        return epochs * self.samples_per_epoch + min(steps * self.samples_per_step, self.samples_per_epoch)

    def epoch(self, step):
        """Returns the epoch of the samples of `step`."""
        return max(0, step - 1) // self.steps_per_epoch

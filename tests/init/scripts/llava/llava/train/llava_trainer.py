from transformers import Trainer


class LLaVATrainer(Trainer):
    def get_length_grouped_indices(self, lengths, batch_size, world_size):
        return sorted(range(len(lengths)), key=lambda i: lengths[i])

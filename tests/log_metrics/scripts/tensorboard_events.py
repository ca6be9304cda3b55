"""TensorBoard event files: scalars as numbers (torch) and as tensors (as TensorFlow writes them), a picture, a histogram."""

import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from torch.utils.tensorboard import SummaryWriter
from truth import Truth

truth = Truth()
torch.manual_seed(0)
writer = SummaryWriter("board")
for step in range(1, 41):
    loss, rate = torch.rand(()).item() * 4, 1e-3 / step
    if step == 17:
        loss = float("nan")
    writer.add_scalar("train/loss", loss, step)
    writer.add_scalar("train/learning_rate", rate, step)
    values = {"loss": torch.tensor(loss).item(), "lr": torch.tensor(rate).item()}
    if step % 10 == 0:
        writer.add_histogram("weights", torch.randn(100), step)
        writer.add_image("sample", torch.rand(3, 8, 8), step)
        score = torch.rand(()).item()
        event = Event(step=step, wall_time=0.0)
        event.summary.value.add(tag="eval/accuracy", tensor=TensorProto(dtype=DT_FLOAT, float_val=[score]))
        writer._get_file_writer().event_writer.add_event(event)
        values["eval_accuracy"] = torch.tensor(score).item()
    truth.write(step, **values)
writer.close()

"""The parts of a training of several ranks: the share of each, the agreement on a step, and the state that each keeps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "companion")]

import torch

from downshift_cockpit import batches, border, flight, rank_file, ranks, saver, snapshot, wire
from downshift_cockpit.excepthook import CheckpointError, ConfigError

torch.set_num_threads(1)


class Shares(unittest.TestCase):
    def plan(self, world, count=90, micro=4, accumulation=2, at=(0, 0)):
        """Returns the micro-batches of each rank."""
        settings = [batches.Settings(1, micro, accumulation, 0, False, rank, world) for rank in range(world)]
        return [list(batches.MapSource(list(range(count)), each, 1).micros(*at)) for each in settings]

    def test_the_ranks_read_each_sample_once_and_reduce_as_often(self):
        for world in (1, 2, 3, 5):
            found = self.plan(world)
            for step in zip(*found):
                self.assertEqual({(m.is_boundary, m.step_samples, m.step_end) for m in step}, {(step[0].is_boundary, step[0].step_samples, step[0].step_end)})
            counted = sorted(at for plan in found for m in plan if m.weight for at in range(m.begin, m.begin + m.samples))
            self.assertEqual(counted, list(range(90)), "the last step has two samples")
            steps = sum(m.is_boundary for m in found[0])
            self.assertAlmostEqual(sum(m.weight for plan in found for m in plan), steps * world, msg="a mean over ranks")
            self.assertAlmostEqual(sum(m.share for m in found[-1]), steps, msg="each rank's own loss is a mean")

    def test_a_rank_without_a_sample_reads_one_that_does_not_count(self):
        plan = self.plan(3, count=86)[2]
        self.assertEqual((plan[-1].samples, plan[-1].weight, plan[-1].is_epoch_end), (1, 0.0, True))

    def test_another_number_of_ranks_goes_on_at_the_same_sample(self):
        after_a_step = self.plan(2)[0][1].step_end
        rest = self.plan(3, at=(0, after_a_step))
        counted = sorted(at for plan in rest for m in plan if m.weight for at in range(m.begin, m.begin + m.samples))
        self.assertEqual(counted, list(range(after_a_step, 90)))

    def test_a_loader_with_an_order_of_its_own_is_refused_and_a_distributed_one_taken_apart(self):
        data = torch.utils.data
        weighted = data.DataLoader(list(range(10)), 2, sampler=data.WeightedRandomSampler([1.0] * 10, 10))
        shared = data.DataLoader(list(range(10)), 2, sampler=data.DistributedSampler(list(range(10)), 2, 1, shuffle=False))
        open_source = lambda loader: batches.open_source(  # noqa: E731
            loader, batches.Settings(1, None, 1, 0, False, 1, 2), lambda name, default: default, 1, None, True, {}, None
        )
        with self.assertRaisesRegex(ConfigError, "order of its own"):
            open_source(weighted)
        source = open_source(shared)
        self.assertEqual([(m.begin, m.samples) for m in source.micros(0, 0)], [(2, 2), (6, 2), (9, 1)])
        self.assertFalse(source.shuffle)


class Agreed(unittest.TestCase):
    def test_every_rank_acts_at_the_step_that_rank_0_wrote_before_it(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = (border.Agreement(folder, rank, 2) for rank in range(2))
            asked = []

            def plan(step):
                asked.append(step)
                return step == 4, False

            found = [(first.decide(step, plan), second.decide(step, None)) for step in (2, 3, 4, 5)]
            nothing, save = ((False, False),) * 2, ((True, False),) * 2
            self.assertEqual(found, [nothing, nothing, save, nothing])
            self.assertEqual(asked, [3, 4, 6], "what was agreed comes first")
            border.Agreement(folder, 0, 2)
            self.assertEqual(second.decide(4, None), (False, False), "the next process begins with nothing agreed")

    def test_one_process_decides_at_once(self):
        self.assertEqual(border.Agreement("", 0, 1).decide(7, lambda step: (step == 7, True)), (True, True))


class Saves(unittest.TestCase):
    def save_twice(self, rank, writes):
        """Saves a step in the background, then as the last one of the run. Returns the outcome and the events."""
        companion = unittest.mock.Mock(checkpoint={}, **{"wait_published.side_effect": ["rank 1 of 2: no space", None]})
        capture = unittest.mock.Mock(**{"write.side_effect": writes})
        with tempfile.TemporaryDirectory() as companion.staging:
            present = saver.Saver(companion, capture, None, ranks.Ranks(rank, 2))
            present.request(5, 20, {})
            outcomes = [present.save(5, 20, {}), present.save(5, 20, {})]
        sent = [call.args[0]["event"] for call in companion.send.call_args_list]
        return outcomes, [event for event in sent if event != "phase"]

    def test_a_failed_save_of_the_last_step_is_repeated_by_every_rank(self):
        full = OSError(errno.ENOSPC, "no space")
        self.assertEqual(self.save_twice(1, [full, None]), ([None, None], ["save_failed", "staged"]))
        self.assertEqual(self.save_twice(0, [None, None]), ([None, None], ["staged", "staged"]))


class Start(unittest.TestCase):
    def test_ranks_of_several_machines_are_refused(self):
        group = {"is_initialized": True, "get_rank": 0, "get_world_size": 4}
        with contextlib.ExitStack() as present:
            for name, value in group.items():
                present.enter_context(unittest.mock.patch.object(torch.distributed, name, return_value=value))
            present.enter_context(unittest.mock.patch.dict(os.environ, LOCAL_WORLD_SIZE="2"))
            self.assertEqual(ranks.find().world, 4, "without downshift nothing is saved")
            companion = present.enter_context(unittest.mock.patch.object(wire, "companion")).return_value
            companion.nodes = 1
            with self.assertRaisesRegex(ConfigError, "2 of 4 ranks run on this machine"):
                ranks.find()
            companion.nodes = 2
            self.assertEqual(ranks.find().world, 4, "on the two nodes of a job")
            companion.nodes, os.environ["LOCAL_WORLD_SIZE"] = 1, "4"
            self.assertEqual(ranks.find().world, 4)

    def test_a_process_on_another_node_has_a_name_of_its_own(self):
        pid = os.getpid()
        self.assertEqual(wire.Companion({}).process, str(pid))
        self.assertEqual(wire.Companion({"node": 1, "nodes": 2}).process, "1-{}".format(pid))


class DistributedDataParallel(torch.nn.Module):
    """Plays torch's wrapper, which needs a process group."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class Places(unittest.TestCase):
    def read(self, file):
        with open(file.path, "rb") as record:
            return rank_file.LAYOUT.unpack(record.read())

    def test_the_file_says_where_the_rank_stands_and_how_its_losses_were(self):
        with tempfile.TemporaryDirectory() as folder:
            file = rank_file.RankFile(os.path.join(folder, "s.sock"), 1)
            file.resume(7)
            for loss in (2.0, 4.0, float("nan"), float("inf"), None):
                file.enter(rank_file.COMPUTE)
                file.took(file._step + 1, loss)
            file.enter(rank_file.REDUCTION)
            found = self.read(file)
            self.assertEqual((found[0], found[2:4], found[5]), (rank_file.VERSION, (12, rank_file.REDUCTION), 5))
            self.assertEqual(found[14:19], (2, 4.0, 6.0, 20.0, 10))
            self.assertEqual(found[1], found[-1], "the number of the write stands on both sides")
            self.assertGreater(found[6 + rank_file.COMPUTE], 0.0)
            self.assertEqual(os.path.basename(file.path), "s.sock.rank-1.{}".format(os.getpid()))
            for step, kept in ((209, 10), (210, 210)):
                file.took(step, float("nan"))
                file.enter(rank_file.SCRIPT)
                self.assertEqual(self.read(file)[18], kept)

    def test_a_forked_process_and_a_full_disk_change_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            file = rank_file.RankFile(os.path.join(folder, "s.sock"), 0)
            before = self.read(file)
            with unittest.mock.patch.object(os, "getpid", return_value=-1):
                file.enter(rank_file.DATA)
            with unittest.mock.patch.object(os, "pwrite", side_effect=OSError(errno.ENOSPC, "full")):
                file.enter(rank_file.DATA)
            self.assertEqual(repr(self.read(file)), repr(before))

    def test_the_reduction_begins_when_the_own_backward_pass_is_done(self):
        weight, entered = torch.ones(3, requires_grad=True), []
        weight.register_hook(lambda _: entered.append("own gradient"))
        file = unittest.mock.Mock(**{"enter.side_effect": entered.append})
        loss = weight.sum() * 1.0
        rank_file.watch_reduction(loss, file)
        loss.backward()
        self.assertEqual(entered, ["own gradient", rank_file.REDUCTION])

    def test_without_a_process_group_no_collective_is_named(self):
        self.assertEqual(flight.describe_newest()["number"], 0)

    def test_one_process_has_no_file(self):
        self.assertIsNone(rank_file.open_for(unittest.mock.Mock(), 0, 1).path)
        self.assertIsNone(rank_file.open_for(None, 0, 2).path)


class State(unittest.TestCase):
    def parts(self, rank, world, seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        model[1].running_mean.fill_(rank)
        return snapshot.Parts({"": DistributedDataParallel(model)}, [optimizer], [], None, {}, ranks.Ranks(rank, world))

    def save(self, folder, world):
        for rank in range(world):
            capture = snapshot.Capture(self.parts(rank, world, 1))
            capture.take({"step": 5})
            capture.write(os.path.join(folder, str(rank)))
            for name in os.listdir(os.path.join(folder, str(rank))):
                os.rename(os.path.join(folder, str(rank), name), os.path.join(folder, name))

    def test_a_rank_keeps_what_is_its_own_and_reads_the_rest_from_rank_0(self):
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder, 2)
            alone = snapshot.Kept(folder, 1)
            self.assertEqual((sorted(alone.models[""]), alone.optimizers), (["1.num_batches_tracked", "1.running_mean", "1.running_var"], [None]))
            parts = self.parts(1, 2, 2)
            snapshot.restore(parts, snapshot.read(folder, parts.ranks))
            expected = self.parts(1, 2, 1)
            for name, value in expected.models[""].state_dict().items():
                self.assertTrue(torch.equal(parts.models[""].state_dict()[name], value), name)
            moments = [p.optimizers[0].state_dict()["state"][0]["exp_avg"] for p in (parts, expected)]
            self.assertTrue(torch.equal(*moments))

    def test_a_missing_part_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder, 2)
            os.unlink(os.path.join(folder, "rank-1.python.json"))
            snapshot.read(folder, ranks.Ranks(0, 2))
            with self.assertRaisesRegex(CheckpointError, "rank-1.python.json"):
                snapshot.read(folder, ranks.Ranks(1, 2))

    def test_another_number_of_ranks_reads_what_is_the_same_on_all_and_no_parts_of_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder, 2)
            kept = snapshot.read(folder, ranks.Ranks(2, 3))
            self.assertEqual((kept.world, float(kept.models[""]["1.running_mean"][0])), (2, 0.0))
            path = os.path.join(folder, "python.json")
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            weights = document["models"][""]
            weights["0.weight"] = {"shard": {"part": weights["0.weight"], "shape": [4, 3]}}
            with open(path, "w", encoding="utf-8") as file:
                json.dump(document, file)
            with self.assertRaisesRegex(ConfigError, "spread over 2 ranks, and this training has 3: start it with 2 ranks again"):
                snapshot.read(folder, ranks.Ranks(0, 3))

    def test_a_model_that_no_wrapper_reduces_is_refused(self):
        model = torch.nn.Linear(2, 1)
        ranks.check_models({"": model}, ranks.Ranks())
        ranks.check_models({"": DistributedDataParallel(model)}, ranks.Ranks(0, 2))
        with self.assertRaisesRegex(ConfigError, "the model would be trained apart on each of 2 ranks"):
            ranks.check_models({"": model}, ranks.Ranks(0, 2))
        ranks.check_models({"": model.requires_grad_(False)}, ranks.Ranks(0, 2))

    def test_a_bad_loss_of_one_rank_is_a_bad_gradient_on_all(self):
        weight = torch.ones(3, requires_grad=True)
        several = ranks.Ranks(0, 2)
        several.spread_non_finite(weight.sum() + float("inf")).backward()
        self.assertTrue(weight.grad.isnan().all(), "the gradient of the sum alone is finite")
        weight.grad = None
        several.spread_non_finite(weight.sum()).backward()
        self.assertEqual(weight.grad.tolist(), [1.0, 1.0, 1.0])


if __name__ == "__main__":
    unittest.main()

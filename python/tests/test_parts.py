"""The parts of the plain loop on their own: order, files, values, rates, gradients, the line to the harness."""

from __future__ import annotations

import collections
import io
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
import unittest
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "companion")]

import numpy
import safetensors.torch
import torch

from downshift_cockpit import batches, blame, excepthook, gradients, inject, order, random_state, rates
from downshift_cockpit import safetensors as files, sample, snapshot, values, wire
from harness_double import HarnessDouble

torch.set_num_threads(1)


class OrderOfSamples(unittest.TestCase):
    def test_it_is_a_permutation_that_depends_on_seed_and_epoch(self):
        for count in (1, 2, 3, 10, 97, 1000, 20_000):
            found = order.Order(count, 5, 1).indices(0, count)
            self.assertEqual(sorted(found), list(range(count)))
            if count > 10:
                self.assertNotEqual(found, order.Order(count, 5, 2).indices(0, count))
                self.assertNotEqual(found, order.Order(count, 6, 1).indices(0, count))

    def test_a_part_of_it_is_the_same_from_any_position(self):
        whole = order.Order(20_000, 5, 1).indices(0, 20_000)
        for begin, end in ((0, 1), (8190, 8195), (19_999, 20_000), (5000, 17_000)):
            self.assertEqual(order.Order(20_000, 5, 1).indices(begin, end), whole[begin:end])

    def test_the_order_is_fixed_for_all_versions(self):
        self.assertEqual(order.Order(10, 1, 0).indices(0, 10), [PINNED[index] for index in range(10)])
        same = order.Order(1000, 1, 0)

        def by_integers(position):
            value = same._permute(position)
            return value if value < 1000 else by_integers_again(value)

        def by_integers_again(value):
            while value >= 1000:
                value = same._permute(value)
            return value

        self.assertEqual([by_integers(position) for position in range(1000)], same.indices(0, 1000))

    def test_all_orders_of_four_are_as_frequent(self):
        found = collections.Counter(tuple(order.Order(4, seed, 0).indices(0, 4)) for seed in range(4800))
        self.assertEqual(len(found), 24)
        self.assertGreater(min(found.values()), 140)
        self.assertLess(max(found.values()), 270)

    def test_each_library_has_a_stream_of_its_own(self):
        order.seed_libraries(order.derive(1, "sample", 0, 3))
        drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        self.assertEqual(len({round(value, 6) for value in drawn}), 3)
        order.seed_libraries(order.derive(1, "sample", 0, 3))
        self.assertEqual(drawn, [random.random(), float(numpy.random.rand()), float(torch.rand(()))])


PINNED = [6, 3, 2, 1, 8, 5, 7, 0, 4, 9]


class Batches(unittest.TestCase):
    def plan(self, micro, accumulation, count=10, epochs=2, drop_last=False, at=(0, 0)):
        settings = batches.Settings(epochs, micro, accumulation, 0, drop_last)
        source = batches.MapSource(list(range(count)), settings, 1)
        return [
            (m.epoch, m.begin, m.samples, m.step_samples, m.is_boundary, m.is_epoch_end)
            for m in source.micros(*at)
        ], source

    def test_a_step_is_cut_at_the_end_of_an_epoch(self):
        micros, source = self.plan(4, 2, epochs=1)
        self.assertEqual(micros, [(0, 0, 4, 8, False, False), (0, 4, 4, 8, True, False), (0, 8, 2, 2, True, True)])
        self.assertEqual((source.steps_per_epoch, source.epoch_units), (2, 10))

    def test_the_rest_of_an_epoch_is_cut_by_another_batch(self):
        micros, _ = self.plan(3, 1, at=(1, 4))
        self.assertEqual([(epoch, begin, samples) for epoch, begin, samples, *_ in micros], [(1, 4, 3), (1, 7, 3)])
        micros, _ = self.plan(3, 1, drop_last=True, epochs=1, at=(0, 2))
        self.assertEqual([(begin, samples, end) for _, begin, samples, _, _, end in micros], [(2, 3, False), (5, 3, True)])

    def test_a_short_last_step_is_left_out_if_asked(self):
        micros, source = self.plan(4, 2, drop_last=True)
        self.assertEqual([(epoch, begin) for epoch, begin, *_ in micros], [(0, 0), (0, 4), (1, 0), (1, 4)])
        self.assertEqual((source.steps_per_epoch, source.epoch_units), (1, 8))
        with self.assertRaisesRegex(excepthook.ConfigError, "a step takes 20"):
            self.plan(10, 2, drop_last=True)

    def test_a_data_set_without_positions_is_refused(self):
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(4))

        settings = batches.Settings(1, 2, 1, 0, False)
        with self.assertRaisesRegex(excepthook.ConfigError, "with a length and an index"):
            batches.open_source(Stream(), settings, lambda name, given: given, 1, None, True, {}, None)

    def test_plain_loaders_are_taken_apart_and_others_read_as_they_are(self):
        def opened(loader):
            settings = batches.Settings(1, None, 1, 0, False)
            return batches.open_source(loader, settings, lambda name, given: given, 1, None, True, {}, None)

        numbers = torch.arange(10)
        loader = torch.utils.data.DataLoader
        plain = opened(loader(numbers, batch_size=4, shuffle=True, drop_last=True))
        self.assertEqual((plain.grade, plain.shuffle, plain.epoch_units, plain.micro_batch), ("exact", True, 8, 4))
        self.assertFalse(opened(loader(numbers, batch_size=4)).shuffle)
        sampler = torch.utils.data.WeightedRandomSampler(torch.ones(10), 10)
        self.assertEqual(opened(loader(numbers, 4, sampler=sampler)).grade, "same_data")

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(4))

        self.assertEqual(opened(loader(Stream(), 4)).grade, "weights_only")

    def test_a_generator_in_the_data_set_lowers_the_grade(self):
        class Noisy(torch.utils.data.Dataset):
            def __init__(self):
                self.generator = numpy.random.default_rng(1)

            def __len__(self):
                return 4

        source = batches.MapSource(Noisy(), batches.Settings(1, 2, 1, 0, False), 1)
        self.assertEqual(source.grade, "same_data")
        self.assertIn("generator of its own", source.reason)

    def test_the_loader_with_a_state_continues_from_it(self):
        class Stateful:
            batch_size, num_workers, batch_sampler, dataset = 2, 0, None, None

            def __init__(self):
                self.at = 0

            def __len__(self):
                return 5

            def __iter__(self):
                while self.at < 5:
                    self.at += 1
                    yield torch.full((2,), self.at)
                self.at = 0

            def state_dict(self):
                return {"at": self.at}

            def load_state_dict(self, state):
                self.at = state["at"]

        def read(source, position):
            return [(m.epoch, int(batch[0]), m.is_boundary) for m, batch in source.iterate(position)]

        settings = batches.Settings(2, None, 2, 0, False)
        source = batches.LoaderSource(Stateful(), settings, 1)
        pairs = source.iterate({"epoch": 0, "offset": 0})
        head = [next(pairs) for _ in range(4)]
        kept = source.state()
        self.assertEqual(kept, {"steps": 2, "loader": {"at": 4}})
        whole = [(m.epoch, int(b[0]), m.is_boundary) for m, b in head] + [(m.epoch, int(b[0]), m.is_boundary) for m, b in pairs]
        again = read(batches.LoaderSource(Stateful(), settings, 1, kept), {"epoch": 0, "offset": 8})
        self.assertEqual(whole[4:], again)
        self.assertEqual([number for _, number, _ in whole], [1, 2, 3, 4, 5, 1, 2, 3, 4, 5])
        self.assertEqual([ends for _, _, ends in whole], [False, True, False, True, True] * 2)


class Files(unittest.TestCase):
    def setUp(self):
        self.path = os.path.join(tempfile.mkdtemp(), "x.safetensors")

    def tensors(self):
        types = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)
        found = {str(kind): (torch.randn(3, 5) * 9).to(kind) for kind in types}
        found.update(flag=torch.tensor([True, False, True]), empty=torch.empty(0, 3), scalar=torch.tensor(2.5))
        found["strided"] = torch.randn(6, 4).t()[::2]
        return found

    def test_the_real_library_reads_what_is_written_and_the_reverse(self):
        tensors = self.tensors()
        buffer = files.Buffer(tensors)
        buffer.copy_from(tensors)
        buffer.write(self.path)
        for read in (safetensors.torch.load_file(self.path), files.read(self.path)):
            self.assertEqual(sorted(read), sorted(tensors))
            for name, tensor in tensors.items():
                self.assertEqual(read[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(read[name], tensor), name)
        os.unlink(self.path)
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(whole, self.path, metadata={"format": "pt"})
        self.assertTrue(all(torch.equal(files.read(self.path)[name], tensor) for name, tensor in whole.items()))

    def test_each_tensor_lies_aligned_in_memory(self):
        tensors = {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(5056, dtype=torch.uint8), "c": torch.ones(3)}
        buffer = files.Buffer(tensors)
        buffer.copy_from(tensors)
        buffer.write(self.path)
        self.assertEqual({tensor.data_ptr() % 16 for tensor in files.read(self.path).values()}, {0})

    def test_a_damaged_file_is_refused(self):
        tensors = {"a": torch.ones(100)}
        buffer = files.Buffer(tensors)
        buffer.copy_from(tensors)
        buffer.write(self.path)
        with open(self.path, "rb") as file:
            whole = file.read()
        for damaged in (whole[:-1], whole[:4], b"\xff" * 20, whole[:8] + b"[" + whole[9:], b""):
            with open(self.path, "wb") as file:
                file.write(damaged)
            with self.assertRaises(ValueError):
                files.read(self.path)


class Values(unittest.TestCase):
    def test_state_comes_back_as_it_was(self):
        state = {
            "numbers": [1, -2, 2**70, 1.5, 1e-300, True, None, "x"],
            "tuple": (1, (2.5, [3])),
            "by number": {0: {"step": torch.tensor(3.0)}, 7: {"lr": 0.1}},
            "marks": {"tensor": "not one"},
            "milestones": collections.Counter({5: 1, 20: 2}),
            "bytes": b"\x00\xff",
            "array": numpy.arange(6, dtype=numpy.uint32).reshape(2, 3),
            "numpy": numpy.float64(0.1),
            "infinite": [math.inf, -math.inf],
            "random": random.getstate(),
        }
        encoder = values.Encoder()
        text = json.dumps(encoder.encode(state, "s"), allow_nan=False)
        back = values.decode(json.loads(text), encoder.tensors)
        self.assertTrue(torch.equal(back["by number"][0].pop("step"), state["by number"][0].pop("step")))
        array, was = back.pop("array"), state.pop("array")
        self.assertTrue(numpy.array_equal(array, was) and array.dtype == was.dtype)
        self.assertEqual(back, state)
        self.assertIsInstance(back["milestones"], collections.Counter)
        self.assertIn("s.by number.0.step", encoder.tensors)
        self.assertTrue(math.isnan(values.decode(values.Encoder().encode(math.nan, ""), {})))

    def test_shared_tensors_are_kept_once_and_parts_apart(self):
        weight = torch.arange(6.0).view(2, 3)
        encoder = values.Encoder()
        found = encoder.encode({"a": weight, "b": weight, "row": weight[0], "turned": weight.t()}, "s")
        self.assertEqual((found["a"], found["b"]), ({"tensor": "s.a"}, {"tensor": "s.a"}))
        self.assertEqual(sorted(encoder.tensors), ["s.a", "s.row", "s.turned"])

    def test_a_value_for_pickle_is_refused_by_name(self):
        for value, part in ((object(), "s.x is a builtins.object"), (torch.eye(2).to_sparse(), "s.x is a tensor of a kind")):
            with self.assertRaisesRegex(values.ValueNotKept, part):
                values.Encoder().encode({"x": value}, "s")


def parts_of(model, optimizer=None, **others):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    return snapshot.Parts({"": model}, [optimizer], [], None, others)


class Snapshots(unittest.TestCase):
    def saved(self, parts):
        folder = os.path.join(tempfile.mkdtemp(), "container")
        capture = snapshot.Capture(parts)
        capture.take({"step": 1})
        capture.write(folder)
        return folder

    def trained(self, model, kind=torch.optim.AdamW):
        optimizer = kind(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return parts_of(model, optimizer)

    def test_the_names_are_those_of_the_contract(self):
        folder = self.saved(self.trained(torch.nn.Linear(2, 3)))
        self.assertEqual(sorted(os.listdir(folder)), ["model.safetensors", "optimizer.safetensors", "python.json", "python.safetensors"])
        self.assertEqual(sorted(safetensors.torch.load_file(folder + "/model.safetensors")), ["bias", "weight"])
        self.assertIn("optimizer.0.state.1.exp_avg", safetensors.torch.load_file(folder + "/optimizer.safetensors"))
        with open(folder + "/python.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["models"][""]["bias"], {"tensor": "bias"})

    def test_the_values_are_those_of_the_moment(self):
        parts = self.trained(torch.nn.Linear(2, 3))
        before = parts.models[""].weight.detach().clone()
        capture = snapshot.Capture(parts)
        capture.take({"step": 1})
        with torch.no_grad():
            parts.models[""].weight.zero_()
        folder = os.path.join(tempfile.mkdtemp(), "container")
        capture.write(folder)
        self.assertTrue(torch.equal(safetensors.torch.load_file(folder + "/model.safetensors")["weight"], before))

    def test_buffers_are_kept_between_saves_and_follow_a_growing_state(self):
        model = torch.nn.Linear(2, 3)
        parts = parts_of(model)
        capture = snapshot.Capture(parts)
        capture.take({})
        kept = capture._buffers["model"]
        capture.take({})
        self.assertIs(capture._buffers["model"], kept)
        self.assertEqual(capture._buffers["optimizer"].layout.size, 0)
        model.weight.grad = torch.ones(3, 2)
        parts.optimizers[0].step()
        capture.take({})
        self.assertGreater(capture._buffers["optimizer"].layout.size, 0)

    def test_moments_keep_a_type_that_torch_would_cast(self):
        model = torch.nn.Linear(2, 3).to(torch.bfloat16)
        parts = self.trained(model)
        for state in parts.optimizers[0].state.values():
            state["exp_avg"] = torch.full_like(state["exp_avg"], 1 / 3, dtype=torch.float32)
        kept = snapshot.Kept(self.saved(parts))
        fresh = parts_of(torch.nn.Linear(2, 3).to(torch.bfloat16))
        snapshot.restore(fresh, kept)
        moments = [state["exp_avg"] for state in fresh.optimizers[0].state.values()]
        self.assertTrue(all(moment.dtype == torch.float32 and torch.equal(moment, torch.full_like(moment, 1 / 3)) for moment in moments))

    def test_tied_weights_stay_tied(self):
        def tied():
            model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
            model["b"].weight = model["a"].weight
            return model

        first = tied()
        folder = self.saved(parts_of(first))
        self.assertEqual(list(safetensors.torch.load_file(folder + "/model.safetensors")), ["a.weight"])
        second = tied()
        snapshot.restore(parts_of(second), snapshot.Kept(folder))
        self.assertTrue(torch.equal(second["b"].weight, first["a"].weight))
        self.assertIs(second["b"].weight, second["a"].weight)

    def test_another_model_is_refused_by_the_names_that_differ(self):
        folder = self.saved(self.trained(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))))
        for model, part in (
            (torch.nn.Sequential(torch.nn.Linear(2, 3)), "the script has no `1.weight`, `1.bias`"),
            (torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), torch.nn.Linear(1, 1)), "lacks `2.weight`"),
            (torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)), r"`0.weight` has the shape \[3, 2\]"),
        ):
            with self.assertRaisesRegex(excepthook.CheckpointError, part):
                snapshot.restore(parts_of(model), snapshot.Kept(folder))

    def test_a_damaged_container_is_refused(self):
        folder = self.saved(self.trained(torch.nn.Linear(2, 3)))
        with open(folder + "/python.json", encoding="utf-8") as file:
            text = file.read()
        for name, content in (("python.json", "{"), ("python.json", text.replace('"version": 1', '"version": 9')), ("model.safetensors", "")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(content)
            with self.assertRaises(excepthook.CheckpointError):
                snapshot.Kept(folder)
            with open(folder + "/python.json", "w", encoding="utf-8") as file:
                file.write(text)

    def test_wrappers_do_not_change_names(self):
        model = torch.nn.Linear(2, 3)
        self.assertIs(snapshot.unwrap(torch.compile(model)), model)

    def test_random_states_come_back(self):
        before = random_state.capture()
        print_before = random_state.fingerprint()
        drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        self.assertNotEqual(random_state.fingerprint(), print_before)
        encoder = values.Encoder()
        text = json.dumps(encoder.encode(before, "r"))
        random_state.restore(values.decode(json.loads(text), encoder.tensors))
        self.assertEqual(random_state.fingerprint(), print_before)
        self.assertEqual(drawn, [random.random(), float(numpy.random.rand()), float(torch.rand(()))])


class Gradients(unittest.TestCase):
    def test_norm_and_clipping_are_those_of_torch(self):
        for clip in (None, 0.5, 1e6):
            models = [torch.nn.Linear(7, 5), torch.nn.Linear(7, 5)]
            models[1].load_state_dict(models[0].state_dict())
            for model in models:
                model(torch.arange(7.0)).pow(2).sum().backward()
            expected = torch.nn.utils.clip_grad_norm_(models[0].parameters(), math.inf if clip is None else clip)
            found = gradients.Gradients([torch.optim.SGD(models[1].parameters(), lr=1.0)])
            self.assertEqual(float(found.norm(clip)), float(expected))
            for one, other in zip(models[0].parameters(), models[1].parameters()):
                self.assertTrue(torch.equal(one.grad, other.grad))

    def test_groups_may_be_added_and_the_place_of_a_nan_is_named(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=1.0)
        found = gradients.Gradients([optimizer])
        self.assertEqual(len(found.parameters()), 2)
        optimizer.add_param_group({"params": list(model[0].parameters())})
        self.assertEqual(len(found.parameters()), 4)
        model(torch.ones(2)).sum().backward()
        inject.poison([model[0].bias])
        place = gradients.describe_non_finite(model.named_parameters())
        self.assertEqual(place, {"where": "0.bias", "parameter": "0.bias"})
        unnamed = gradients.describe_non_finite([(None, model[0].bias)])
        self.assertEqual(unnamed, {"where": "a parameter of shape [2]", "parameter": None})
        found.clear()
        self.assertIsNone(gradients.describe_non_finite(model.named_parameters())["parameter"])

    def test_clipping_by_a_bad_norm_leaves_the_bad_gradient_to_be_named(self):
        def clip_as_torch(model, limit):
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)

        def clip_as_loop(model, limit):
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            gradients.Gradients([optimizer], drops=True).norm(limit)

        for clip in (clip_as_torch, clip_as_loop):
            for value, limit in ((math.nan, 1.0), (math.inf, 1.0), (math.nan, math.inf), (math.inf, math.inf)):
                model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
                model(torch.ones(2)).sum().backward()
                model[1].weight.grad[0, 1] = value
                hook = gradients.ClippingHook()
                hook.install()
                clip(model, limit)
                hook.remove()
                place = gradients.describe_non_finite(model.named_parameters())
                self.assertEqual(place["parameter"], "1.weight", (clip, value, limit))
                self.assertTrue(all(bool(found.grad.isfinite().all()) for found in model[0].parameters()))
        # The control: without the hook nothing tells which one it was.
        model(torch.ones(2)).sum().backward()
        model[1].weight.grad[0, 1] = math.nan
        clip_as_torch(model, 1.0)
        self.assertEqual(gradients.describe_non_finite(model.named_parameters())["parameter"], "0.weight")

    def test_the_hook_changes_no_gradient_of_a_finite_norm(self):
        grads = []
        for hooked in (False, True):
            torch.manual_seed(3)
            model = torch.nn.Linear(7, 5)
            model(torch.arange(7.0)).pow(2).sum().backward()
            hook = gradients.ClippingHook()
            if hooked:
                hook.install()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            hook.remove()
            grads.append(model.weight.grad)
        self.assertTrue(torch.equal(*grads))


class Rates(unittest.TestCase):
    def test_all_rates_follow_the_first_and_equal_ones_stay(self):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        before = schedule.state_dict()
        rates.scale([optimizer], [schedule], 0.1)
        self.assertEqual(schedule.state_dict(), before)
        rates.scale([optimizer], [schedule], 0.05)
        self.assertEqual([group["lr"] for group in optimizer.param_groups], [0.05, 0.005])
        self.assertEqual(schedule.base_lrs, [0.05, 0.005])
        self.assertEqual(rates.initial([optimizer]), 0.05)


class Faults(unittest.TestCase):
    def test_faults_strike_at_their_steps_and_are_announced_once(self):
        sent = []
        faults = inject.Faults(["nan@3-4", "slow@2*", "panic@9", "boom@1"], sent.append, lambda seconds: None)
        due = [(faults.strike(step).nan, faults.strike(step).slow) for step in range(1, 6)]
        self.assertEqual(due, [(False, False), (False, True), (True, False), (True, False), (False, False)])
        self.assertEqual([(event["fault"], event["step"]) for event in sent], [("slow@2*", 2), ("nan@3-4", 3)])
        with self.assertRaises(inject.InjectedFault):
            faults.strike(9)

    def test_exceptions_are_classified_by_their_class(self):
        def caused(error, cause):
            error.__cause__ = cause
            return error

        out_of_memory = inject.out_of_memory_class()("x")
        for error, expected in (
            (out_of_memory, "device_out_of_memory"),
            (caused(RuntimeError("x"), out_of_memory), "device_out_of_memory"),
            (RuntimeError("CUDA out of memory"), None),
            (OSError(28, "No space left"), "disk_full"),
            (OSError(2, "No such file"), None),
            (excepthook.CheckpointError("x"), "checkpoint"),
            (excepthook.ConfigError("x"), "config"),
            (torch.AcceleratorError("x"), "device_fault"),
            (KeyError("x"), None),
        ):
            self.assertEqual(excepthook.find_cause(error)[0], expected, repr(error))

    def test_a_failure_that_the_companion_took_is_not_the_cause_of_a_later_one(self):
        def fail_while_saving(takes):
            try:
                try:
                    raise OSError(28, "No space left")
                except OSError as error:
                    if takes:
                        blame.take(error)
                    raise RuntimeError("a loader died")
            except RuntimeError as error:
                return error

        died = fail_while_saving(takes=True)
        self.assertEqual(excepthook.find_cause(died), (None, died))
        full = fail_while_saving(takes=False)
        self.assertEqual(excepthook.find_cause(full), ("disk_full", full.__context__))

    def test_an_exception_of_a_signal_handler_belongs_to_the_script(self):
        def die(*_):
            raise RuntimeError("a loader died")

        before = signal.signal(signal.SIGUSR1, die)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with self.assertRaisesRegex(RuntimeError, "a loader died"):
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(60)
            except RuntimeError as error:
                blame.take(error)


class TheLine(unittest.TestCase):
    def setUp(self):
        self.harness = HarnessDouble()
        with open(self.harness.write_settings(knobs={"training": {"micro_batch": 4}}), encoding="utf-8") as file:
            self.companion = wire.Companion(json.load(file))

    def tearDown(self):
        self.harness.close()

    def test_values_without_json_become_null(self):
        self.companion.send({"event": "note", "loss": math.nan, "list": [math.inf, torch.tensor(2.0)], "what": object})
        event = self.harness.wait_for(lambda event: event["event"] == "note")
        self.assertEqual((event["loss"], event["list"]), (None, [None, 2.0]))

    def test_orders_arrive_and_nonsense_is_passed_over(self):
        self.companion.note("hello")
        self.harness.wait_for(lambda event: event["event"] == "note")
        self.harness.connections[0].sendall(b"nonsense\n[]\n7\n{}\n")
        self.harness.send({"order": "publish_failed", "step": 3, "message": "full"})
        self.harness.send({"order": "checkpoint"})
        self.harness.send({"order": "published", "step": 4})
        self.assertIsNone(self.companion.wait_published(4))
        self.assertEqual(self.companion.wait_published(3), "full")
        self.assertEqual(self.companion.take_order(), {"order": "checkpoint"})
        self.assertIsNone(self.companion.take_order())

    def test_a_stop_counts_as_withdrawn_by_its_place_among_the_answers(self):
        self.companion.note("hello")
        self.harness.wait_for(lambda event: event["event"] == "note")
        for kind, step in (("stop", None), ("published", 3), ("withdraw_stop", None), ("published", 4), ("stop", None), ("published", 5)):
            self.harness.send({"order": kind, "step": step})
        self.assertEqual([self.companion.wait_published(step) for step in (5, 4, 3)], [None] * 3)
        self.assertEqual([self.companion.withdrew_before(step) for step in (3, 4, 5)], [False, True, False])

    def test_a_failure_of_the_companion_is_one_note_and_silence(self):
        try:
            raise KeyError("x")
        except KeyError as error:
            self.companion.quiet(error)
        self.companion.note("never")
        self.harness.wait_for_end()
        note = self.harness.wait_for(lambda event: event["event"] == "note")
        self.assertRegex(note["text"], r"off from here on: KeyError: 'x' \(test_parts.py:\d+\)")
        self.assertEqual((len(self.harness.of("note")), note["level"]), (1, "warn"))

    def test_a_harness_that_is_gone_ends_the_wait(self):
        self.companion.note("hello")
        self.harness.wait_for(lambda event: event["event"] == "note")
        self.harness.close()
        self.assertEqual(self.companion.wait_published(1), "the harness has ended")
        self.companion.note("lost")
        self.companion.flush()

    def test_a_harness_that_reads_nothing_blocks_nobody_and_then_gets_all(self):
        reading = threading.Event()
        self.harness.on_event = lambda harness, event: reading.wait(60)
        for step in range(5000):
            self.companion.send({"event": "step", "step": step, "text": "x" * 200})
        self.assertTrue(self.companion._line._draining)
        reading.set()
        self.companion.flush(60)
        self.harness.wait_for(lambda event: event.get("step") == 4999)
        self.assertEqual([event["step"] for event in self.harness.of("step")], list(range(5000)))

    def test_knobs_by_their_dotted_names(self):
        self.assertEqual(self.companion.knob("training.micro_batch"), 4)
        self.assertEqual(self.companion.knob("training.micro_batch.x", 9), 9)
        self.assertIsNone(self.companion.knob("optimizer.lr"))

    def test_settings_that_cannot_be_read_mean_no_companion(self):
        path = os.path.join(self.harness.folder, "broken.json")
        for text in ("", "[]", '{"protocol": 2}', '{"protocol": 1, "seed": "x"}'):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.environ[wire.VARIABLE] = path
            try:
                self.assertIsNone(wire._read())
            finally:
                del os.environ[wire.VARIABLE]


class Samples(unittest.TestCase):
    def test_pictures_and_texts_lie_in_the_folder(self):
        folder = os.path.join(tempfile.mkdtemp(), "samples")
        picture = torch.zeros(3, 2, 4)
        picture[0] = 1.0
        first = sample.write(folder, 7, image=picture)
        second = sample.write(folder, 7, image=numpy.zeros((2, 4), dtype=numpy.uint8))
        third = sample.write(folder, 7, text="Grüße")
        self.assertEqual(sorted(os.listdir(folder)), ["step-000000007-1.png", "step-000000007.png", "step-000000007.txt"])
        with open(first, "rb") as file:
            data = file.read()
        self.assertEqual(zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]), (b"\0" + b"\xff\0\0" * 4) * 2)
        self.assertTrue(second.endswith(".png") and third.endswith(".txt"))
        with self.assertRaisesRegex(excepthook.ConfigError, "either text or image"):
            sample.write(folder, 7)
        with self.assertRaisesRegex(excepthook.ConfigError, r"shape \[2\]"):
            sample.write(folder, 7, image=torch.zeros(2))


if __name__ == "__main__":
    unittest.main()

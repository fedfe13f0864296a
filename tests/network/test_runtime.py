"""`network.runtime`: every runtime gives what torch gives, and the fastest is chosen only if it does."""

import importlib.util
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.io.cores import fastest_threads, free_threads, torch_threads
from flatfold.network import runtime as runtimes
from flatfold.network.calls import evaluating
from flatfold.network.heads import find_head, run
from flatfold.network.runtime import TOLERANCE, FastestRuntime, OnnxRuntime, TorchRuntime, disagreement
from tests.refusals import refused

needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


def make_network(*tail):
    """A small convolutional network with four classes."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*body, *(tail or (nn.AdaptiveAvgPool2d(1), nn.Flatten())), nn.LazyLinear(4)).eval()


def make_case(model=None, rows=6):
    model, x = model or make_network(), torch.randn(rows, 3, 9, 9)
    with torch.no_grad():
        model(x)
    return model, find_head(model, x), split_batch(x)


def result_of(runtime, model, batch):
    with evaluating(model):
        return runtime(batch)


class Viewed(nn.Module):
    """A layer that does not take channels last."""

    def forward(self, x):
        return x.view(len(x), -1)


@needs_onnx
def test_every_runtime_gives_features_and_logits_of_torch_for_batches_of_any_size():
    model = make_network(nn.BatchNorm2d(12, affine=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for norm in (module for module in model if isinstance(module, nn.BatchNorm2d)):
        for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            if values is not None:
                nn.init.uniform_(values, 0.5, 1.5)
    model, found, batch = make_case(model)
    for name in ("torch", "onnx"):
        runtime = FastestRuntime(name, model, found)
        for part in (batch, batch.part(0, 1), batch.part(0, 5)):
            with evaluating(model):
                expected, given = run(model, found, part), runtime(part)
            assert disagreement(given, expected) <= TOLERANCE
            assert given.features.shape == (part.rows, 12)
        assert runtime.chosen_name == name
        assert not any(value.is_inference() for value in given), "features can be trained on"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Skipping serialization")  # of torch itself
def test_a_compiled_network_gives_the_same_and_is_not_left_compiled():
    model, found, batch = make_case()
    runtime = FastestRuntime("torch-compile", model, found)
    for part in (batch, batch.part(0, 5), batch.part(0, 1)):
        with evaluating(model):
            assert disagreement(runtime(part), run(model, found, part)) <= TOLERANCE
    assert not hasattr(model, "_orig_mod")


def test_channels_last_is_for_convolutions_that_allow_it():
    for model, expected in (
        (make_network(), True),
        (make_network(Viewed()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(243, 4)), False),
    ):
        model, found, batch = make_case(model)
        before = {name: value.stride() for name, value in model.state_dict().items()}
        with evaluating(model):
            assert TorchRuntime.of(model, found, batch.part(0, 1)).channels_last == expected, "chosen on one image"
            chosen = TorchRuntime.of(model, found, batch)
            assert chosen.channels_last == expected
            assert_close(chosen(batch).logits, run(model, found, batch).logits)
        assert {name: value.stride() for name, value in model.state_dict().items()} == before, "the model was changed"


def test_few_images_keep_their_layout_with_which_they_are_faster():
    model, found, batch = make_case()
    seen = []
    model[0].register_forward_hook(lambda _, args, output: seen.append(args[0].is_contiguous()))
    with evaluating(model):
        chosen = TorchRuntime.of(model, found, batch)
        assert chosen.channels_last
        for rows in (1, 2, 4, 6):
            seen.clear()
            chosen(batch.part(0, rows))
            assert seen == [rows < 4], rows


@needs_onnx
def test_a_runtime_that_does_not_agree_is_refused_and_never_chosen(tmp_path, monkeypatch):
    model, found, batch = make_case()
    real = OnnxRuntime.__call__

    def wrong(self, batch):
        features, logits = real(self, batch)
        return type(real(self, batch))(features, logits + 1e-3 * logits.abs().amax())

    monkeypatch.setattr(OnnxRuntime, "__call__", wrong)
    with evaluating(model), refused("onnx", "differ from those of torch"):
        FastestRuntime("onnx", model, found)(batch)
    auto = FastestRuntime("auto", model, found, rows=10**9)
    monkeypatch.setattr(runtimes, "WORTH_COMPILE", torch.inf)
    result_of(auto, model, batch)
    assert auto.chosen_name == "torch"
    assert "differ" in auto.reason


@needs_onnx
def test_auto_takes_the_fastest_and_says_why(monkeypatch):
    model, found, batch = make_case()
    monkeypatch.setattr(runtimes, "WORTH_COMPILE", torch.inf)
    for seconds, rows, name, reason in (
        ({"torch": 3.0, "onnx": 1.0}, None, "onnx", "3.0 times as fast"),
        ({"torch": 1.0, "onnx": 2.0}, None, "torch", "2.00 times as long"),
        ({"torch": 0.06, "onnx": 0.01}, 7, "torch", "too short"),
    ):
        monkeypatch.setattr(runtimes, "_seconds", lambda runtime, batch, of=seconds: of[runtime.name])
        auto = FastestRuntime("auto", model, found, rows=rows)
        result_of(auto, model, batch)
        assert auto.chosen_name == name
        assert reason in str(auto), str(auto)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    auto = FastestRuntime("auto", model, found)
    result_of(auto, model, batch)
    assert auto.chosen_name == "torch"
    assert "not installed" in auto.reason


@needs_onnx
@pytest.mark.slow
def test_an_exported_graph_is_kept_and_used_only_for_the_network_it_came_from(tmp_path, monkeypatch):
    model, found, batch = make_case()
    cache, exports = tmp_path / "guard.graph", []
    real = FastestRuntime._export_graph
    monkeypatch.setattr(FastestRuntime, "_export_graph", lambda *args: exports.append(1) or real(*args))

    def use(model, found, batch):
        exports.clear()
        with evaluating(model):
            given = FastestRuntime("onnx", model, found, cache=cache)(batch)
            assert disagreement(given, run(model, found, batch)) <= TOLERANCE
        return len(exports)

    assert use(model, found, batch) == 1
    assert use(model, found, batch.part(0, 2)) == 0
    assert use(model, found, split_batch(torch.randn(3, 3, 11, 11))) == 1, "another shape"
    model[1].eps = 10.0  # the same weights, another function
    assert use(model, found, split_batch(torch.randn(3, 3, 11, 11))) == 1
    content = bytearray(cache.read_bytes())
    content[len(content) // 2] ^= 1
    cache.write_bytes(content)
    assert use(model, found, split_batch(torch.randn(3, 3, 11, 11))) == 1, "a damaged file"
    cache.write_bytes(content[:100])
    assert use(model, found, split_batch(torch.randn(3, 3, 11, 11))) == 1, "a cut file"
    with torch.no_grad():
        model[0].weight[0] += 0.1
    assert use(model, found, split_batch(torch.randn(3, 3, 11, 11))) == 1, "other weights"
    blocked = tmp_path / "file" / "graph"
    blocked.parent.write_text("not a folder")
    with evaluating(model):
        assert FastestRuntime("onnx", model, found, cache=blocked)(batch).logits.shape == (6, 4)


@needs_onnx
def test_inputs_of_another_shape_go_to_torch():
    model, found, batch = make_case()
    runtime = FastestRuntime("onnx", model, found)
    larger = split_batch(torch.randn(2, 3, 15, 13))
    with evaluating(model):
        runtime(batch)
        assert_close(runtime(larger).logits, run(model, found, larger).logits)


def test_what_a_runtime_cannot_do_is_refused():
    model, found, _ = make_case()
    with refused("tensorflow", "runtime"):
        FastestRuntime("tensorflow", model, found)
    with refused("onnx", "mixed precision"):
        FastestRuntime("onnx", model, found, dtype=torch.bfloat16)
    with refused("shape", r"\(2, 9, 9\)"), evaluating(model):
        FastestRuntime("torch", model, found)(split_batch(torch.randn(4, 2, 9, 9)))


def test_disagreement_is_relative_to_the_largest_logit_and_sees_nan_and_features():
    model, found, batch = make_case()
    result = result_of(TorchRuntime(model, found), model, batch)
    assert disagreement(result, result) == 0
    shifted = result._replace(logits=result.logits + 1e-3 * result.logits.abs().amax(dim=1, keepdim=True))
    assert disagreement(shifted, result) == pytest.approx(1e-3, rel=1e-3)
    assert disagreement(result._replace(features=result.features * 1.01), result) == pytest.approx(0.01, rel=1e-3)
    assert disagreement(result._replace(logits=result.logits * torch.nan), result) == torch.inf


def test_mixed_precision_is_near_and_stays_with_the_guard(tmp_path):
    model, _, _ = make_case()
    x = torch.randn(80, 3, 9, 9)
    plain = ff.Guard.fit(model, [x], method="msp", fpr=0.1)
    mixed = ff.Guard.fit(model, [x], method="msp", fpr=0.1, execution=ff.Execution(dtype=torch.bfloat16))
    assert mixed(x).logits.dtype == torch.bfloat16
    assert_close(mixed(x).logits.float(), plain(x).logits, rtol=0.1, atol=0.05)
    assert not torch.equal(mixed(x).score, plain(x).score)
    mixed.save(tmp_path / "guard.safetensors")
    again = ff.Guard.load(tmp_path / "guard.safetensors", model)
    assert torch.equal(again(x).score, mixed(x).score)
    assert torch.equal(again.at(0.2)(x).score, mixed(x).score)
    with refused("export", "bfloat16"):
        again.as_module()


def test_threads_are_those_of_the_free_cores_unless_the_user_has_set_them(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert free_threads(1) == 1
    with suppress(ZeroDivisionError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert free_threads(7) == before + 1
        with torch_threads():
            torch.set_num_threads(before + 2)
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_the_number_of_threads_is_the_fastest_one_and_few_where_more_hardly_help(monkeypatch):
    state = {"threads": 4, "now": 0.0, "calls": 0}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: state.update(threads=n))
    monkeypatch.setattr(torch, "get_num_threads", lambda: state["threads"])
    monkeypatch.setattr("flatfold.io.clock.perf_counter", lambda: state["now"])

    def choose(times, cores=4):
        def work():
            state.update(now=state["now"] + times[state["threads"]], calls=state["calls"] + 1)

        state.update(threads=4, calls=0)
        return fastest_threads(work, cores), state["threads"]

    for times, expected in (
        ({1: 1.0, 2: 0.6, 4: 0.35}, 4),
        ({1: 1.0, 2: 11.0, 4: 30.0}, 1),  # a busy machine
        ({1: 1.0, 2: 0.95, 4: 0.93}, 1),
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),
    ):
        assert choose(times) == (expected, 4), times
    assert choose({4: 1.0}, cores=1) == (1, 4)
    assert state["calls"] == 0
    choose({1: 0.01, 2: 0.02, 4: 0.03})
    assert state["calls"] == 1 + 3 * 5
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose({}) == (4, 4)

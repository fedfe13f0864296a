"""A guard gives the same answers however its model is run: types, devices, compilers, threads, batch sizes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.models.at_rest import as_it_was
from flatfold.models.batches import split_batch
from flatfold.models.heads import run
from flatfold.scoring.calibration import lifted
from tests import architectures as made
from tests.architectures import HUB, built
from tests.four_classes import known as of_four_classes

CLASSES = 4
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device")),
]
COMPILERS = {
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
    "through autograd": lambda model: torch.compile(model, backend="aot_eager"),
    "its first layer only": lambda model: nn.Sequential(torch.compile(model[0], backend="eager"), *model[1:]),
}


def make_model(*before):
    """Four classes, each recognised by its own two of eight inputs; with dropout, so that modes matter."""
    model = nn.Sequential(*before, nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    with torch.no_grad():
        model[-4].weight.copy_(torch.eye(8).repeat(2, 1))
        model[-4].bias.zero_()
        model[-1].weight.copy_(2 * torch.eye(CLASSES).repeat_interleave(2, dim=1).repeat(1, 2))
        model[-1].bias.copy_(torch.tensor([0.1, 0.2, -0.1, 0.0]))
    return model


def known(n, seed=0, dtype=torch.float32):
    x, y = of_four_classes(n, seed)
    return x.to(dtype), y


def unknown(n, seed=0):
    return 0.3 * torch.rand(n, 8, generator=torch.Generator().manual_seed(seed))


def fit(model, dtype=torch.float32, **options):
    return ff.Guard.fit(model, [known(200, dtype=dtype)], detector="fold", fpr=0.1, **options)


def features_of(guard, x):
    with as_it_was(guard.model) as device:
        return run(guard.model, guard.found, split_batch(x).to(device)).features


def check_same(one, other, **tolerance):
    for ours, theirs in zip(one, other, strict=True):
        assert_close(ours, theirs, **tolerance)


# Types


def test_under_autocast_the_score_is_that_of_the_features_outside_of_it():
    guard = fit(make_model())
    x = torch.cat([known(100, seed=1)[0], unknown(100)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        verdict, features = guard(x), features_of(guard, x)
    assert verdict.logits.dtype == torch.bfloat16, "autocast did not reach the model"
    assert torch.equal(features, features.bfloat16().float())
    assert verdict.score.dtype == features.dtype == torch.float32
    assert torch.equal(verdict.score, guard.detector(features))
    assert not torch.equal(verdict.score, verdict.score.bfloat16().float())
    assert torch.equal(verdict.is_ood, verdict.p_value <= 0.1)
    assert verdict.is_ood[100:].double().mean() > 0.9
    assert (verdict.is_ood == guard(x).is_ood).double().mean() > 0.95


def test_a_guard_that_is_fitted_under_autocast_is_calibrated_as_it_scores():
    model = make_model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guard = fit(model, calibration=[known(80, seed=3)])
        features = features_of(guard, known(80, seed=3)[0])
    assert torch.equal(guard.calibration.scores[0], lifted(guard.detector(features)).sort().values)


def test_a_model_in_float64_is_judged_in_float64():
    guard = fit(make_model().double(), dtype=torch.float64)
    x, _ = known(50, seed=1, dtype=torch.float64)
    verdict = guard(x)
    assert verdict.logits.dtype == verdict.score.dtype == guard.calibration.scores.dtype == torch.float64
    assert not torch.equal(verdict.score, verdict.score.float().double())
    single = fit(make_model())(x.float())
    assert_close(verdict.score.float(), single.score, rtol=1e-5, atol=0)


# Devices


@pytest.mark.parametrize("device", DEVICES)
def test_a_guard_answers_where_the_model_lies(device):
    model = make_model().to(device)
    guard = fit(model)
    x, _ = known(50, seed=1)
    verdict, expected = guard(x), fit(make_model())(x)
    assert {part.device.type for part in verdict} == {device}
    assert_close(verdict.score.cpu(), expected.score, rtol=1e-3, atol=0)
    assert (verdict.is_ood.cpu() == expected.is_ood).double().mean() > 0.95


@pytest.mark.parametrize("device", DEVICES)
def test_a_guard_follows_a_model_that_is_moved_after_the_fit(device):
    model = make_model()
    guard = fit(model, device=device)
    assert {values.device.type for values in model.parameters()} == {"cpu"}
    x, _ = known(50, seed=1)
    expected = guard(x)
    model.to(device)
    moved = guard(x)
    assert {part.device.type for part in moved} == {device}
    assert_close(moved.score.cpu(), expected.score, rtol=1e-3, atol=0)
    check_same(guard(x.to(device)), moved)


# Compilers


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=list(COMPILERS))
@pytest.mark.parametrize("used_before", [True, False], ids=["used before", "new"])
def test_a_compiled_model_gives_the_verdicts_of_the_plain_one(compiler, used_before):
    x, _ = known(50, seed=1)
    compiled = compiler(make_model().eval())
    if used_before:
        with torch.no_grad():
            compiled(x)  # from now on its hooks would be skipped
    guard, plain = fit(compiled), fit(make_model())
    assert guard.found.name == plain.found.name == "3"
    check_same(guard(x), plain(x), rtol=1e-6, atol=0)
    with torch.no_grad():
        assert_close(compiled(x), plain.model.eval()(x))
    check_same(guard(x), plain(x), rtol=1e-6, atol=0)


def test_a_model_that_is_compiled_in_place_after_the_fit_is_still_watched():
    model = make_model().eval()
    guard = fit(model)
    x, _ = known(50, seed=1)
    expected = guard(x)
    model.compile(backend="eager")
    with torch.no_grad():
        model(x)
    check_same(guard(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=list(COMPILERS))
@pytest.mark.parametrize("fitted_on_the_compiled", [True, False])
def test_a_file_serves_the_compiled_and_the_plain_model(compiler, fitted_on_the_compiled, tmp_path):
    pair = [compiler(make_model()), make_model()]
    ours, theirs = pair if fitted_on_the_compiled else pair[::-1]
    guard = fit(ours)
    guard.save(tmp_path / "guard.safetensors")
    x, _ = known(50, seed=1)
    check_same(ff.Guard.load(tmp_path / "guard.safetensors", theirs)(x), guard(x), rtol=1e-6, atol=0)


# Threads and other surroundings


class Gate(nn.Module):
    """Keeps inputs that begin with a 7 or an 8 waiting, each until it is let through."""

    def __init__(self):
        super().__init__()
        self.inside = {mark: threading.Event() for mark in (7, 8)}
        self.opened = {mark: threading.Event() for mark in (7, 8)}

    def forward(self, x):
        mark = float(x[0, 0])
        if mark in self.inside:
            self.inside[mark].set()
            assert self.opened[mark].wait(60), "nobody opened the gate"
        return x


def marked(x, mark):
    x = x.clone()
    x[0, 0] = mark
    return x


def overlapping(guard, gate, x, order):
    """Return two verdicts by threads that are in the model at once; the marks in `order` say which leaves it first."""
    with ThreadPoolExecutor(2) as pool:
        calls = {}
        try:
            for mark in (7, 8):
                calls[mark] = pool.submit(guard, marked(x, mark))
                assert gate.inside[mark].wait(60), "the model was never called"
            for mark in order:
                gate.opened[mark].set()
                calls[mark].result(60)
        finally:
            for opened in gate.opened.values():
                opened.set()
        return {mark: call.result() for mark, call in calls.items()}


ORDERS = pytest.mark.parametrize("order", [(7, 8), (8, 7)], ids=["first in, first out", "first in, last out"])


@ORDERS
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_two_threads_in_the_model_at_once_do_not_disturb_each_other(training, order):
    gate = Gate()
    model = make_model(gate).train(training)
    x, _ = known(40, seed=1)
    verdicts = overlapping(fit(model), gate, x, order)
    assert all(module.training == training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    plain = fit(make_model())
    for mark, verdict in verdicts.items():
        check_same(verdict, plain(marked(x, mark)), rtol=0, atol=0)


@ORDERS
def test_two_threads_get_their_own_answers_when_the_head_was_named(order):
    gate = Gate()  # behind the head: both threads have called it when the first of them leaves
    model = made.Net(lambda m, x: (m.network(x), m.gate(x))[0].softmax(dim=-1), network=make_model(), gate=gate)
    with pytest.warns(UserWarning, match="is not what the model returns"):
        guard = fit(model, head="network.3")
    x, _ = known(40, seed=1)
    verdicts = overlapping(guard, gate, x, order)
    plain = fit(make_model())
    for mark, verdict in verdicts.items():
        check_same(verdict, plain(marked(x, mark)), rtol=0, atol=0)


@ORDERS
def test_compiling_is_possible_again_after_calls_in_two_threads(order):
    import torch._dynamo.eval_frame as compiler

    gate = Gate()
    overlapping(fit(make_model(gate)), gate, known(40, seed=1)[0], order)
    assert compiler._stance.stance == "default"


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_many_threads_get_their_own_answers(training):
    guard = fit(make_model().train(training))
    inputs = [known(20 + seed % 3, seed=seed)[0] for seed in range(40)]
    expected = [guard(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(pool.map(guard, inputs), expected, strict=True):
            check_same(ours, theirs, rtol=0, atol=0)
    assert guard.model.training == training


def test_inference_mode_outside_changes_nothing(tmp_path):
    x, _ = known(40, seed=1)
    outside = fit(make_model())
    with torch.inference_mode():
        inside = fit(make_model())
        check_same(outside(x), inside(x), rtol=0, atol=0)
    check_same(outside(x), inside(x), rtol=0, atol=0)
    inside.save(tmp_path / "guard.safetensors")
    check_same(ff.Guard.load(tmp_path / "guard.safetensors", make_model())(x), outside(x), rtol=0, atol=0)


def test_gradients_stay_on_outside_and_none_are_kept():
    guard = fit(make_model())
    verdict = guard(known(5)[0].requires_grad_())
    assert torch.is_grad_enabled()
    assert not any(part.requires_grad for part in verdict)


# Batch sizes


ALONE = [
    made.mlp,
    made.residual_cnn,
    made.gru_state_with_its_layer,
    made.convolution_head,
    made.tied_head,
    "vit",
    "bert",
]


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind if isinstance(kind, str) else kind.__name__)
def test_an_input_alone_is_judged_as_in_a_batch(kind):
    model, inputs = built(HUB[kind] if isinstance(kind, str) else kind)
    guard = ff.Guard.fit(model, [inputs], detector="fold", fpr=0.1)
    verdict = guard(inputs)
    for row in (0, 3):
        one = (
            {name: x[row : row + 1] for name, x in inputs.items()}
            if isinstance(inputs, dict)
            else inputs[row : row + 1]
        )
        alone = guard(one)
        assert_close(alone.logits, verdict.logits[row : row + 1], rtol=1e-5, atol=1e-5)
        assert_close(alone.score, verdict.score[row : row + 1], rtol=1e-4, atol=0)
        assert_close(alone.p_value, verdict.p_value[row : row + 1], rtol=0, atol=1 / 24)


@pytest.mark.parametrize("kind", [made.mlp, made.residual_cnn, made.gru], ids=lambda kind: kind.__name__)
def test_an_empty_batch_gives_an_empty_verdict(kind):
    model, x = built(kind)
    verdict = ff.Guard.fit(model, [x], detector="fold", fpr=0.1)(x[:0])
    assert verdict.logits.shape == (0, CLASSES)
    assert verdict.score.shape == verdict.p_value.shape == verdict.is_ood.shape == (0,)
    assert verdict.is_ood.dtype == torch.bool


# One graph


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_guard_as_one_compiled_module_gives_the_same_verdict(compiler):
    model = make_model()
    guard = fit(model)
    x = torch.cat([known(40, seed=1)[0], unknown(40)])
    module = torch.compile(guard.as_module(), backend=compiler, fullgraph=True)
    with torch.no_grad():
        check_same(module(x), guard(x), rtol=1e-6, atol=0)
        check_same(module(x[:3]), guard(x[:3]), rtol=1e-6, atol=0)
    assert all(part.training for part in model.modules())


def test_a_guard_as_a_module_scores_under_autocast_as_the_guard_does():
    guard = fit(make_model())
    x, _ = known(40, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        check_same(guard.as_module()(x), guard(x), rtol=0, atol=0)

"""A guard, and model and calibrated as one module, give the same answers however the model is run."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo.eval_frame as compiler
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.errors import UnsupportedHeadError
from flatfold.network.calls import evaluating
from flatfold.network.heads import run
from tests import architectures as made
from tests.architectures import built
from tests.four_classes import known
from tests.four_classes import make_model as four_classes_model

COMPILERS = {
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
    "through autograd": lambda model: torch.compile(model, backend="aot_eager"),
    "its first layer only": lambda model: nn.Sequential(torch.compile(model[0], backend="eager"), *model[1:]),
}


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    yield
    torch._dynamo.reset()


def guard_of(kind, detector="fold", **options):
    model, inputs = built(getattr(made, kind))
    return ff.Guard.fit(model, [inputs], method=detector, fpr=0.1, **options), inputs


def called(module, inputs):
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)


def check_same(ours, theirs, rtol=1e-5, atol=1e-6):
    assert ours._fields == theirs._fields
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", ["mlp", "residual_cnn", "convolution_head", "two_inputs", "two_views"])
def test_the_module_gives_the_verdicts_of_the_guard_and_compiles_without_a_break(kind):
    guard, x = guard_of(kind)
    expected, module = guard(x), guard.as_module()
    check_same(called(module, x), expected)
    for backend in ("eager", "aot_eager") if kind == "mlp" else ("eager",):
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        check_same(called(compiled, x), expected)
    if kind == "mlp":
        check_same(compiled(x[:3]), guard(x[:3]))


def test_it_is_in_evaluation_mode_keeps_no_gradients_and_can_be_converted():
    guard, x = guard_of("mlp")
    module = guard.as_module().train()
    assert not any(part.training for part in module.modules())
    assert torch.equal(module(x).logits, module(x).logits)  # dropout would change them
    assert not any(part.requires_grad for part in module(x))
    assert all(weight.requires_grad for weight in guard.model.parameters())
    verdict = module.double()(x.double())
    assert verdict.score.dtype == torch.float64
    assert_close(verdict.score.float(), guard(x).score, rtol=1e-4, atol=1e-6)


def test_weights_are_shared_except_where_training_would_change_them():
    guard, _ = guard_of("residual_cnn")
    pairs = zip(guard.model.state_dict().values(), guard.as_module().network.model.state_dict().values(), strict=True)
    assert all(ours.data_ptr() == theirs.data_ptr() for ours, theirs in pairs)
    guard, x = guard_of("low_rank_head")
    expected, module = guard(x), guard.as_module()
    guard.model.train()  # takes the correction out of the weight
    check_same(module(x), expected)


def test_a_batch_that_fails_leaves_nothing_to_the_next():
    guard, x = guard_of("mlp")
    module = guard.as_module()
    with pytest.raises(RuntimeError):
        module(x[:, :5])
    with pytest.raises(UnsupportedHeadError, match="one row of features per input"):
        module(x.view(4, 12, 12))
    check_same(module(x), guard(x))
    assert not module.network._calls


def guard_of_forward(forward, head=None):
    """A guard of a linear layer `head`, called in a way of one's own."""
    torch.manual_seed(0)
    model, x = made.Net(forward, head=nn.Linear(12, 4)), torch.randn(48, 12)
    return ff.Guard.fit(model, [x], method="fold", fpr=0.1, execution=ff.Execution(head=head)), x


def test_features_are_kept_before_the_model_changes_them():
    def forward(m, x):
        hidden = torch.relu(x)
        logits = m.head(hidden)
        hidden.zero_()
        return logits

    guard, x = guard_of_forward(forward)
    check_same(guard.as_module()(x), guard(x))
    assert len(guard(x).score.unique()) > 40


def test_a_head_that_is_called_twice_must_be_told_by_its_output():
    def forward(m, x):
        logits = m.head(x)
        m.head(3 * x)
        return logits

    guard, x = guard_of_forward(forward)
    check_same(guard.as_module()(x), guard(x))
    guard, x = guard_of_forward(lambda m, x: forward(m, x).clone())
    with pytest.raises(UnsupportedHeadError, match="2 times"):
        guard.as_module()(x)


def test_a_layer_that_was_named_counts_in_its_last_call():
    with pytest.warns(UserWarning, match="does not return the output"):
        guard, x = guard_of_forward(lambda m, x: (m.head(3 * x) + m.head(x)).log_softmax(dim=-1), head="head")
    check_same(guard.as_module()(x), guard(x))


@pytest.mark.parametrize("detector", ["ebo", "react", "fold-r", "msp"])
def test_a_graph_raises_an_alarm_for_features_that_are_not_finite(detector):
    torch.manual_seed(0)
    model, good = nn.Linear(6, 4), torch.rand(60, 6)
    guard = ff.Guard.fit(model, [good], method=detector, fpr=0.1)
    graph = torch.export.export(guard.as_module(), (good,)).module()
    for value in (torch.inf, -torch.inf, torch.nan):
        x = good.clone()
        x[3, 0], x[5] = value, value
        verdict = graph(x)
        assert verdict.score.isnan().nonzero().flatten().tolist() == [3, 5], value
        assert verdict.is_ood[[3, 5]].all(), value
        assert_close(verdict.p_value[[3, 5]], torch.full((2,), 1 / 31))
        with pytest.raises(ValueError, match="row 3"):
            guard(x)


def make_model(*before):
    return nn.Sequential(*before, *four_classes_model())


def fit(model, **options):
    return ff.Guard.fit(model, [known(200)], method="fold", fpr=0.1, **options)


def features_of(guard, x):
    with evaluating(guard.model) as device:
        return run(guard.model, guard.network.found, split_batch(x).to(device)).features


def test_under_autocast_the_score_is_that_of_the_features_outside_of_it():
    guard = fit(make_model())
    x = torch.cat([known(100, seed=1)[0], 0.3 * torch.rand(100, 8, generator=torch.Generator().manual_seed(0))])
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


@pytest.mark.parametrize("compile_it", COMPILERS.values(), ids=list(COMPILERS))
def test_a_compiled_model_gives_the_verdicts_of_the_plain_one_and_its_files(compile_it, tmp_path):
    x, _ = known(50, seed=1)
    plain, path = fit(make_model()), tmp_path / "guard.safetensors"
    for used_before in (True, False):
        compiled = compile_it(make_model().eval())
        if used_before:
            with torch.no_grad():
                compiled(x)  # from now on its hooks would be skipped
        guard = fit(compiled)
        assert guard.network.found.name == plain.network.found.name == "3"
        check_same(guard(x), plain(x), rtol=1e-6)
        with torch.no_grad():
            assert_close(compiled(x), plain.model.eval()(x))
        check_same(guard(x), plain(x), rtol=1e-6)
        module = guard.as_module()
        assert list(module.state_dict()) == list(plain.as_module().state_dict()), "it is still compiled"
        check_same(module(x), plain(x))
        for ours, theirs in ((guard, make_model()), (plain, compile_it(make_model()))):
            ours.save(path)
            check_same(ff.Guard.load(path, theirs)(x), ours(x), rtol=1e-6)


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


@pytest.mark.parametrize("order", [(7, 8), (8, 7)], ids=["first in, first out", "first in, last out"])
def test_two_threads_in_the_model_at_once_do_not_disturb_each_other(order):
    x, _ = known(40, seed=1)
    plain = fit(make_model())
    for training in (True, False):
        gate = Gate()
        model = make_model(gate).train(training)
        verdicts = overlapping(fit(model), gate, x, order)
        assert all(module.training == training for module in model.modules())
        assert not any(module._forward_hooks for module in model.modules())
        assert compiler._stance.stance == "default", "nothing could be compiled any more"
        for mark, verdict in verdicts.items():
            check_same(verdict, plain(marked(x, mark)), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [made.mlp, made.residual_cnn, made.gru_state_with_its_layer, made.tied_head])
def test_an_input_alone_is_judged_as_in_a_batch(kind):
    model, inputs = built(kind)
    guard = ff.Guard.fit(model, [inputs], method="fold", fpr=0.1)
    verdict = guard(inputs)
    for row in (0, 3):
        alone = guard(inputs[row : row + 1])
        assert_close(alone.logits, verdict.logits[row : row + 1], rtol=1e-5, atol=1e-5)
        assert_close(alone.score, verdict.score[row : row + 1], rtol=1e-4, atol=0)
        assert_close(alone.p_value, verdict.p_value[row : row + 1], rtol=0, atol=1 / 24)


def test_an_empty_batch_gives_an_empty_verdict():
    for kind in (made.mlp, made.residual_cnn, made.gru):
        model, x = built(kind)
        verdict = ff.Guard.fit(model, [x], method="fold", fpr=0.1)(x[:0])
        assert verdict.logits.shape == (0, 4)
        assert verdict.score.shape == verdict.p_value.shape == verdict.is_ood.shape == (0,)
        assert verdict.is_ood.dtype == torch.bool

"""Model and judge as one module: the guard's answers, and nothing of the original changed."""

import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.errors import UnsupportedHead
from tests import architectures as made
from tests.architectures import built

KINDS = ["mlp", "residual_cnn", "convolution_head", "transformer_layer", "two_inputs", "two_views", "weight_norm_head"]


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    yield
    torch._dynamo.reset()


def guard_of(kind, detector="fold", **options):
    model, inputs = built(getattr(made, kind))
    return ff.Guard.fit(model, [inputs], detector=detector, fpr=0.1, **options), inputs


def called(module, inputs):
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)


def check_same(ours, theirs, rtol=1e-5):
    assert ours._fields == theirs._fields
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_gives_the_verdicts_of_the_guard(kind):
    guard, x = guard_of(kind)
    check_same(called(guard.as_module(), x), guard(x))


@pytest.mark.parametrize("kind", ["mlp", "residual_cnn", "two_inputs", "two_views"])
def test_it_compiles_without_a_break_and_gives_the_same(kind):
    guard, x = guard_of(kind)
    check_same(called(torch.compile(guard.as_module(), fullgraph=True, backend="eager"), x), guard(x))


@pytest.mark.parametrize("per_class", [False, True])
def test_torch_export_takes_it_for_batches_of_any_size(per_class):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(200, 3)
    guard = ff.Guard.fit(model, [x], detector="fold", fpr=0.1, per_class=per_class)
    program = torch.export.export(guard.as_module(), (x[:4],), dynamic_shapes=(({0: torch.export.Dim("n")},),))
    for rows in (1, 7, 64):
        check_same(program.module()(x[:rows]), guard(x[:rows]))


def test_a_compiled_model_gives_a_plain_module_with_the_names_of_the_plain_one():
    model, x = built(made.mlp)
    plain = list(ff.Guard.fit(model, [x], detector="fold", fpr=0.1).as_module().state_dict())
    parts = nn.Sequential(torch.compile(model[0], backend="eager"), *model[1:])
    for compiled in (torch.compile(model, backend="eager"), parts, torch.compile(parts, backend="eager")):
        guard = ff.Guard.fit(compiled, [x], detector="fold", fpr=0.1)
        module = guard.as_module()
        assert list(module.state_dict()) == plain
        check_same(module(x), guard(x))


def test_under_autocast_it_gives_the_verdicts_of_the_guard_under_autocast():
    guard, x = guard_of("mlp")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = guard.as_module()(x), guard(x)
    assert ours.logits.dtype == torch.bfloat16
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_it_is_in_evaluation_mode_whatever_is_asked_for():
    guard, x = guard_of("mlp")
    module = guard.as_module().train()
    assert not any(part.training for part in module.modules())
    assert torch.equal(module(x).logits, module(x).logits)  # dropout would change them


def test_no_graph_of_gradients_is_kept():
    guard, x = guard_of("mlp")
    assert not any(part.requires_grad for part in guard.as_module()(x))
    assert all(weight.requires_grad for weight in guard.model.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["mlp", "residual_cnn", "low_rank_head", "tied_head", "weight_norm_head"])
def test_the_original_is_left_as_it_was(kind, training):
    guard, x = guard_of(kind)
    guard.model.train(training)
    before = {name: values.clone() for name, values in guard.model.state_dict().items()}
    module = guard.as_module()
    check_same(module(x), guard(x))
    module.double()
    assert all(torch.equal(values, before[name]) for name, values in guard.model.state_dict().items())
    assert {part.training for part in guard.model.modules()} == {training}
    assert {tensor.dtype for tensor in guard.judge.detector.buffers()} == {torch.float32}
    assert not guard.found.module._forward_hooks


def test_the_module_of_a_layer_that_merges_its_weights_survives_that_the_original_is_trained_on():
    guard, x = guard_of("low_rank_head")
    expected, module = guard(x), guard.as_module()
    guard.model.train()
    check_same(module(x), expected)


def test_weights_are_shared_and_not_copied():
    guard, _ = guard_of("residual_cnn")
    pairs = zip(guard.model.state_dict().values(), guard.as_module().model.state_dict().values(), strict=True)
    assert all(ours.data_ptr() == theirs.data_ptr() for ours, theirs in pairs)


def test_it_can_be_converted():
    guard, x = guard_of("mlp")
    verdict = guard.as_module().double()(x.double())
    assert verdict.score.dtype == torch.float64
    assert_close(verdict.score.float(), guard(x).score, rtol=1e-4, atol=1e-6)


def test_what_goes_into_the_head_is_kept_before_the_model_changes_it():
    def forward(m, x):
        hidden = torch.relu(m.body(x))
        logits = m.head(hidden)
        hidden.zero_()
        return logits

    torch.manual_seed(0)
    model, x = made.Net(forward, body=nn.Linear(12, 16), head=nn.Linear(16, 4)), torch.randn(48, 12)
    guard = ff.Guard.fit(model, [x], detector="fold", fpr=0.1)
    check_same(guard.as_module()(x), guard(x))
    assert len(guard(x).score.unique()) > 40


def test_a_batch_that_fails_leaves_nothing_to_the_next():
    guard, x = guard_of("mlp")
    module = guard.as_module()
    with pytest.raises(RuntimeError):
        module(x[:, :5])
    check_same(module(x), guard(x))
    assert not module._calls


@pytest.mark.parametrize("copied", [False, True])
def test_a_head_that_is_called_twice_must_be_told_by_its_output(copied):
    def forward(m, x):
        logits = m.head(x)
        m.head(3 * x)
        return logits.clone() if copied else logits

    torch.manual_seed(0)
    model, x = made.Net(forward, head=nn.Linear(12, 4)), torch.randn(48, 12)
    guard = ff.Guard.fit(model, [x], detector="fold", fpr=0.1)
    if not copied:
        check_same(guard.as_module()(x), guard(x))
        return
    with pytest.raises(UnsupportedHead, match=r"'head' is called 2 times for a batch, .* Return that output itself"):
        guard.as_module()(x)


def test_a_layer_that_was_named_counts_in_its_last_call():
    def forward(m, x):
        return (m.head(3 * x) + m.head(x)).log_softmax(dim=-1)

    torch.manual_seed(0)
    model, x = made.Net(forward, head=nn.Linear(12, 4)), torch.randn(48, 12)
    with pytest.warns(UserWarning, match="is not what the model returns"):
        guard = ff.Guard.fit(model, [x], detector="fold", fpr=0.1, head="head")
    check_same(guard.as_module()(x), guard(x))


def test_a_model_that_cannot_be_copied_is_refused():
    guard, _ = guard_of("mlp")
    guard.model.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"this \w+ cannot be: cannot pickle '_thread.lock' object. Keep tensors as"):
        guard.as_module()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("detector", ["ebo", "react", "fold-r", "msp"])
def test_a_graph_raises_an_alarm_for_features_that_are_not_finite(detector, value):
    torch.manual_seed(0)
    model, x = nn.Linear(6, 4), torch.rand(60, 6)
    guard = ff.Guard.fit(model, [x], detector=detector, fpr=0.1)
    graph = torch.export.export(guard.as_module(), (x,)).module()
    x[3, 0], x[5] = value, value
    verdict = graph(x)
    assert verdict.score.isnan().nonzero().flatten().tolist() == [3, 5]
    assert verdict.is_ood[[3, 5]].all()
    assert_close(verdict.p_value[[3, 5]], torch.full((2,), 1 / 31))
    with pytest.raises(ValueError, match="features must be finite, but row 3"):
        guard(x)


def test_a_batch_in_which_the_head_sees_no_row_per_input_is_refused():
    guard, x = guard_of("mlp")
    with pytest.raises(
        UnsupportedHead, match=r"the head '3' must be given one row of features per input, .* never was"
    ):
        guard.as_module()(x.view(4, 12, 12))

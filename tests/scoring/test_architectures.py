"""A guard around classifiers of many kinds; the oracle is the model itself, called by hand."""

from functools import partial

import pytest
import torch
from torch.nn.functional import linear
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.errors import UnsupportedHeadError
from flatfold.network.calls import evaluating, logits_of
from flatfold.network.heads import run
from tests import architectures as made
from tests.architectures import HUB, ROWS, built
from tests.refusals import assert_refused

# What the authors of each model call its last layer.
OUTPUTS = [made.returns_a_tuple, made.returns_a_dict, made.auxiliary_head, made.two_views]
BY_HAND = {
    **dict.fromkeys([made.mlp, made.double_model, made.bfloat16_model], "3"),
    **dict.fromkeys([made.head_without_bias, made.low_rank_head, made.weight_norm_head], "2"),
    **dict.fromkeys([made.lstm, made.gru, made.gru_state_with_its_layer, made.time_first], "out"),
    **dict.fromkeys([*OUTPUTS, made.two_inputs, made.tied_head, made.decoder], "head"),
    made.two_heads_averaged: "head,other",
    made.pooled_classes: "2",
    made.linear_alone: "",
    made.convolution_head: "4",
    made.residual_cnn: "fc",
    made.data_parallel: "module.fc",
    made.wrapped_with_normalisation: "network.fc",
}
OTHER_NAMES = {
    **dict.fromkeys(["regnet", "resnet", "bit"], "classifier.1"),
    **dict.fromkeys(["roberta", "electra"], "classifier.out_proj"),
    **dict.fromkeys(["bart", "t5"], "classification_head.out_proj"),
    "levit": "classifier.linear",
    **dict.fromkeys(["image_gpt", "gpt2", "llama"], "score"),
    "deit_with_teacher": "cls_classifier,distillation_classifier",
    "levit_with_teacher": "classifier.linear,classifier_distill.linear",
    "swiftformer": "head,dist_head",
    "xlnet": "logits_proj",
    "audio_spectrogram": "classifier.dense",
}
REFUSED = {
    made.two_heads_weighted: "'head', 'other' .*weighted",
    made.squeezenet: "mean .* of the ReLU .* '2'",
    made.tagger: r"every token or pixel.*\(48, \d, 4\)",
    made.no_linear_layer: "no linear layer",
    made.probabilities: "softmax.*head='head'",
    made.cosine_head: "Cosine",
    made.nearest_prototype: "'body'",
    "patch_tst": "PatchTSTForClassificationOutput",
}
HEADS = {**BY_HAND, **{name: OTHER_NAMES.get(name, "classifier") for name in HUB if name not in REFUSED}}
RELATED = [made.decoder, made.two_heads_averaged, made.pooled_classes]
QUICK = [made.double_model, made.two_views, made.low_rank_head, *RELATED, "bert"]
SAVED = [
    *RELATED,
    "gpt2",
    made.tied_head,
    made.low_rank_head,
    made.convolution_head,
    made.double_model,
    "swin",
    "wav2vec2",
    "bert",
]
# Two passes over the same input may add in another order where their batches differ.
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}


def name_of(kind):
    return kind if isinstance(kind, str) else kind.__name__


def make(kind):
    """Return a model in the mode that it was made in, and its inputs."""
    return built(HUB[kind] if isinstance(kind, str) else kind)


def part(inputs, start, stop):
    if isinstance(inputs, dict):
        return {name: values[start:stop] for name, values in inputs.items()}
    return inputs[start:stop]


def batches(inputs):
    """Three labelled batches of different sizes, of all inputs but the last eight."""
    labels = torch.arange(ROWS) % made.CLASSES
    return [(part(inputs, *ends), labels[slice(*ends)]) for ends in ((0, 16), (16, 30), (30, ROWS - 8))]


def call(model, inputs):
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def state(model):
    """What a guard must leave as it was, of every module and every tensor."""
    modules = [(module.training, len(module._forward_hooks)) for module in model.modules()]
    tensors = [(values.requires_grad, values.detach().clone()) for values in model.parameters()]
    return modules, tensors, [values.clone() for values in model.buffers()]


def check_left_alone(model, before):
    modules, tensors, buffers = before
    assert [(module.training, len(module._forward_hooks)) for module in model.modules()] == modules
    for values, (wanted_gradient, old) in zip(model.parameters(), tensors, strict=True):
        assert values.grad is None
        assert values.requires_grad == wanted_gradient
        assert_close(values.detach(), old, rtol=0, atol=1e-6, equal_nan=True)  # low_rank_head adds and takes away
    for values, old in zip(model.buffers(), buffers, strict=True):
        assert torch.equal(values, old)


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in HEADS], ids=name_of
)
def test_a_guard_finds_the_head_and_answers_as_the_model_does(kind, tmp_path):
    model, inputs = make(kind)
    call(model.eval(), part(inputs, 0, 2))  # transformers adds hooks of its own at the first call
    model.train()
    before = state(model)
    guard = ff.Guard.fit(model, batches(inputs), method="fold", fpr=0.1)
    some = part(inputs, ROWS - 8, ROWS)  # p-values of what was calibrated on hang on the last digit of the score
    verdict = guard(some)
    check_left_alone(model, before)

    assert (guard.network.found.name, guard.network.found.gives_logits) == (HEADS[kind], True)
    logits = logits_of(call(model.eval(), some))
    assert logits.std(dim=0).min() > 0, "the case shows nothing: every input has the same logits"
    assert_close(verdict.logits, logits, rtol=CLOSE[logits.dtype], atol=CLOSE[logits.dtype])
    with evaluating(model) as device:
        seen = run(model, guard.network.found, split_batch(some).to(device))
    head = guard.network.found.head
    assert_close(linear(seen.features, head.weight, head.bias).to(logits.dtype), logits, rtol=1e-5, atol=1e-5)
    assert_close(verdict.score, guard.detector(seen.features), rtol=1e-6, atol=0)
    assert verdict.score.isfinite().all()
    assert len(verdict.score.unique()) > 1
    assert torch.equal(verdict.is_ood, verdict.p_value <= 0.1)

    module = guard.as_module()
    for few in (some, part(some, 0, 1)):
        for ours, theirs in zip(call(module, few), guard(few), strict=True):
            assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    module.double()
    check_left_alone(model.train(), before)
    if kind in SAVED:
        guard.save(tmp_path / "guard.safetensors")
        other, _ = make(kind)
        again = ff.Guard.load(tmp_path / "guard.safetensors", other.eval())
        assert again.model is other is not model
        for ours, theirs in zip(guard(some), again(some), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("where", ["by hand", pytest.param("hub", marks=pytest.mark.slow)])
def test_a_model_without_such_a_head_is_refused_and_left_as_it_was(where):
    for kind, keyword in REFUSED.items():
        if isinstance(kind, str) != (where == "hub"):
            continue
        model, inputs = make(kind)
        call(model, inputs)
        before = state(model)
        fit = partial(ff.Guard.fit, model, [inputs], method="fold", fpr=0.1)
        assert_refused(UnsupportedHeadError, keyword, fit, case=name_of(kind))
        check_left_alone(model, before)

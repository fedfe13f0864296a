"""A guard around classifiers of every kind; the oracle is the model itself, called by hand."""

import pytest
import torch
from torch.nn.functional import linear
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.errors import UnsupportedHead
from flatfold.models.at_rest import as_it_was
from flatfold.models.batches import split_batch
from flatfold.models.forward import logits_of
from flatfold.models.heads import run
from tests import architectures as made
from tests.architectures import HUB, ROWS, built

# What the authors of each model call its last layer.
HEADS = {
    made.mlp: "3",
    made.linear_alone: "",
    made.head_without_bias: "2",
    made.double_model: "3",
    made.bfloat16_model: "3",
    made.mixer: "head",
    made.convolution_head: "4",
    made.residual_cnn: "fc",
    made.dense_concatenation: "classifier",
    made.squeeze_and_excitation: "head",
    made.text_cnn: "out",
    made.lstm: "out",
    made.gru: "out",
    made.gru_state_with_its_layer: "out",
    made.time_first: "out",
    made.transformer_layer: "head",
    made.graph_of_points: "head",
    made.two_inputs: "head",
    made.returns_a_tuple: "head",
    made.returns_a_dict: "head",
    made.auxiliary_head: "head",
    made.two_views: "head",
    made.data_parallel: "module.fc",
    made.wrapped_with_normalisation: "network.fc",
    made.tied_head: "head",
    made.low_rank_head: "2",
    made.weight_norm_head: "2",
    "vit": "classifier",
    "deit": "classifier",
    "beit": "classifier",
    "data2vec": "classifier",
    "dinov2": "classifier",
    "dinov2_with_registers": "classifier",
    "ijepa": "classifier",
    "vit_msn": "classifier",
    "clip": "classifier",
    "siglip": "classifier",
    "swin": "classifier",
    "swinv2": "classifier",
    "focalnet": "classifier",
    "hiera": "classifier",
    "pvt": "classifier",
    "pvt_v2": "classifier",
    "segformer": "classifier",
    "cvt": "classifier",
    "levit": "classifier.linear",
    "poolformer": "classifier",
    "convnext": "classifier",
    "convnextv2": "classifier",
    "regnet": "classifier.1",
    "resnet": "classifier.1",
    "bit": "classifier.1",
    "mobilenet_v1": "classifier",
    "mobilenet_v2": "classifier",
    "efficientnet": "classifier",
    "mobilevit": "classifier",
    "videomae": "classifier",
    "image_gpt": "score",
    "bert": "classifier",
    "roberta": "classifier.out_proj",
    "modernbert": "classifier",
    "albert": "classifier",
    "electra": "classifier.out_proj",
    "deberta_v2": "classifier",
    "distilbert": "classifier",
    "xlnet": "logits_proj",
    "fnet": "classifier",
    "bart": "classification_head.out_proj",
    "t5": "classification_head.out_proj",
    "wav2vec2": "classifier",
    "audio_spectrogram": "classifier.dense",
}
AVERAGED = "have as many outputs as there are logits, but none gives them alone: are they averaged or added"
AT_EVERY_TOKEN = r"runs at every token or pixel of an input: its output is \(48, \d, 4\), the logits are"
REFUSED = {
    made.two_heads_averaged: f"'head', 'other' {AVERAGED}",
    made.squeezenet: r"'2' runs at every token or pixel .* \(48, 4, 6, 6\), the logits are \(48, 4\).* pools before",
    made.tagger: rf"'1' {AT_EVERY_TOKEN} \(48, 7, 4\)",
    made.no_linear_layer: "The model called no linear layer. Put the last product into an nn.Linear",
    made.probabilities: "the model changes them before it returns .a softmax, a scale, .* name it: head='head'",
    made.cosine_head: r"must compute z = W h \+ b, but '2' \(Cosine\) gives something else",
    made.nearest_prototype: "called the linear layer 'body', but none with as many outputs as its logits",
    "deit_with_teacher": f"'cls_classifier', 'distillation_classifier' {AVERAGED}",
    "levit_with_teacher": f"'classifier.linear', 'classifier_distill.linear' {AVERAGED}",
    "swiftformer": f"'head', 'dist_head' {AVERAGED}",
    "gpt2": rf"'score' {AT_EVERY_TOKEN} \(48, 4\)\. Wrap the model so that it selects",
    "llama": rf"'score' {AT_EVERY_TOKEN} \(48, 4\)\. Wrap the model so that it selects",
    "patch_tst": "must return logits: .* It returned PatchTSTForClassificationOutput. Wrap it",
}
SAVED = [made.tied_head, made.low_rank_head, made.convolution_head, made.double_model, "swin", "wav2vec2", "bert"]
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


def unseen(inputs):
    """The last eight: the p-value of an input that was calibrated on hangs on the last digit of its score."""
    return part(inputs, ROWS - 8, ROWS)


def called(model, inputs):
    return logits_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))


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


@pytest.mark.parametrize("kind", HEADS, ids=name_of)
def test_a_guard_finds_the_head_and_answers_as_the_model_does(kind):
    model, inputs = make(kind)
    with torch.no_grad():
        called(model.eval(), part(inputs, 0, 2))  # transformers adds hooks of its own at the first call
    model.train()
    before = state(model)
    guard = ff.Guard.fit(model, batches(inputs), detector="fold", fpr=0.1)
    some = unseen(inputs)
    verdict = guard(some)
    check_left_alone(model, before)

    assert (guard.found.name, guard.found.gives_logits) == (HEADS[kind], True)
    with torch.no_grad():
        logits = called(model.eval(), some)
    assert logits.std(dim=0).min() > 0, "the case shows nothing: every input has the same logits"
    assert_close(verdict.logits, logits, rtol=CLOSE[logits.dtype], atol=CLOSE[logits.dtype])
    with as_it_was(model) as device:
        seen = run(model, guard.found, split_batch(some).to(device))
    head = guard.found.head
    assert_close(linear(seen.features, head.weight, head.bias).to(logits.dtype), logits, rtol=1e-5, atol=1e-5)
    assert_close(verdict.score, guard.detector(seen.features), rtol=1e-6, atol=0)
    assert verdict.score.isfinite().all()
    assert len(verdict.score.unique()) > 1
    assert torch.equal(verdict.is_ood, verdict.p_value <= 0.1)


@pytest.mark.parametrize("kind", HEADS, ids=name_of)
def test_model_and_guard_as_one_module_give_the_same_verdicts(kind):
    model, inputs = make(kind)
    guard = ff.Guard.fit(model.eval(), batches(inputs), detector="fold", fpr=0.1)
    module = guard.as_module()
    for some in (unseen(inputs), part(unseen(inputs), 0, 1)):
        with torch.no_grad():
            verdict = module(**some) if isinstance(some, dict) else module(some)
        for ours, theirs in zip(verdict, guard(some), strict=True):
            assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", REFUSED, ids=name_of)
def test_a_model_without_such_a_head_is_refused_and_left_as_it_was(kind):
    model, inputs = make(kind)
    with torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    before = state(model)
    with pytest.raises(UnsupportedHead, match=REFUSED[kind]):
        ff.Guard.fit(model, [part(inputs, 0, ROWS)], detector="fold", fpr=0.1)
    check_left_alone(model, before)


@pytest.mark.parametrize("kind", SAVED, ids=name_of)
def test_a_file_gives_the_same_verdicts_for_another_model_with_the_same_weights(kind, tmp_path):
    (model, inputs), (other, _) = make(kind), make(kind)
    guard = ff.Guard.fit(model.eval(), batches(inputs), detector="fold", fpr=0.1)
    guard.save(tmp_path / "guard.safetensors")
    again = ff.Guard.load(tmp_path / "guard.safetensors", other.eval())
    assert again.model is other is not model
    for ours, theirs in zip(guard(unseen(inputs)), again(unseen(inputs)), strict=True):
        assert torch.equal(ours, theirs)


def test_every_model_of_the_list_is_used():
    assert {kind for kind in {**HEADS, **REFUSED} if isinstance(kind, str)} == set(HUB)
    assert len(HEADS) >= 28

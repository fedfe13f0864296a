"""What a guard around a model of a library must do; the oracle is the model itself, called by hand."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch.nn.functional import linear
from torch.testing import assert_close

import flatfold as ff
from flatfold.network.calls import logits_of
from tests.architectures import CLASSES, built

FPR = 0.1
FITTED, JUDGED = 20, 4  # half of the former are held out; the rate takes nine samples


def random_batches(inputs):
    """Split random inputs into labelled batches to fit on and inputs to judge."""

    def part(start, stop):
        return {k: v[start:stop] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[start:stop]

    labels = torch.arange(FITTED) % CLASSES
    half = FITTED // 2
    data = [(part(0, half), labels[:half]), (part(half, FITTED), labels[half:])]
    return data, part(FITTED, FITTED + JUDGED)


def built_for_images(make, side):
    """Return a model with random weights that all matter, and random images for it."""
    return built(lambda: (make(), torch.randn(FITTED + JUDGED, 3, side, side)))


def check_guard(model, data, batch, folder, method="fourfold", **loading):
    """Fit a guard on ``data``, judge a prepared batch, save and load the guard; return it."""
    guard = ff.Guard.fit(model, data, method=method, fpr=FPR, loading=ff.Loading(**loading))
    verdict = guard(batch)
    model.eval()
    with torch.no_grad():
        logits = logits_of(model(**batch) if isinstance(batch, Mapping) else model(batch))
    assert logits.std(dim=0).min() > 0, "the case shows nothing: every input has the same logits"
    assert torch.equal(verdict.logits, logits)
    features, head = guard.network(batch).features, guard.network.found.head
    close = 1e-5 * float(logits.abs().max())
    assert_close(linear(features, head.weight, head.bias), logits, rtol=0, atol=close)
    assert torch.equal(verdict.score, guard.detector(features))
    assert torch.equal(verdict.is_ood, verdict.p_value <= FPR)

    guard.save(folder / "guard.safetensors")
    again = ff.Guard.load(folder / "guard.safetensors", deepcopy(model))
    for ours, theirs in zip(verdict, again(batch), strict=True):
        assert torch.equal(ours, theirs)
    return guard


def check_export(model, inputs, folder):
    """Export a guard around a model in both formats; each file is compared with the guard before it is written."""
    data, some = random_batches(inputs)
    guard = ff.Guard.fit(model, data, method="fold", fpr=FPR)
    for suffix in (".pt2", ".onnx"):
        assert guard.export(folder / f"guard{suffix}", some).inputs == JUDGED

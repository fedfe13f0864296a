"""The scores of every registered method on one small fixed world, in float64."""

import json

import numpy as np
import pytest

import flatfold as ff
from flatfold.detectors import METHODS, parse_method
from tests.golden.inputs import batches, load, network
from tests.golden.pins import EXPECTED, check

pytestmark = pytest.mark.filterwarnings(
    "ignore:AutoFold's curve is flat",
    "ignore:the reference optimiser reached a temperature",
    "ignore:every sample of this bank is classified correctly",
)
VARIANTS = [
    ("fold", {"alpha": 0.0}),
    ("fold", {"alpha": 1.0}),
    ("fold", {"score_norm": "weight"}),
    ("fold", {"score_norm": "feature"}),
    ("autofold", {"criterion": "one_vs_rest"}),
    ("autofold", {"criterion": "shrunk"}),
    ("mds", {"alpha": 1.0}),
    ("msp", {"alpha": 0.5}),
    ("ebo", {"temperature": 2.0}),
    ("knn", {"k": 3}),
    ("react", {"percentile": 80.0}),
]


def named(name, hyper):
    return ":".join([name, *(f"{key}={value}" for key, value in hyper.items())])


def test_methods_that_see_features():
    tensors = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in load().items()}
    bank = ff.FeatureBank(tensors["features"], tensors["labels"])
    head = ff.Head(tensors["weight"], tensors["bias"])
    every = [(name, {}) for name, method in METHODS.items() if method.sees == "features"]
    found = {}
    for name, hyper in every + VARIANTS:
        detector = ff.create(name, **hyper).fit(bank, head)
        found[named(name, hyper)] = {part: detector(tensors[part]).tolist() for part in ("known", "unknown")}
    check("scores", found)


def network_functions(model, x):
    """Return what methods that run the network get, by what they see."""
    layers, head = ff.layers_of(model, x, "stem"), ff.layers_and_head(model, x)
    return {"logits": ff.logits_function(model), "layers": layers, "head": head}


def test_methods_that_run_the_network():
    model = network().double()
    double = {name: [(x.double(), y) for x, y in batches(name)] for name in ("train", "test", "noise")}
    found = {}
    functions = network_functions(model, double["train"][0][0])
    for name, method in METHODS.items():
        if method.sees == "features":
            continue
        detector = ff.create(name).fit(functions[method.sees], double["train"])
        found[name] = {part: detector(double[part][0][0][:12]).tolist() for part in ("test", "noise")}
    check("input_scores", found)


def test_methods_agree_with_openoods_steps():
    """Its confidences for the same float32 inputs; they grow where our scores fall."""
    tensors, model = load(), network()
    bank, head = ff.FeatureBank(tensors["features"], tensors["labels"]), ff.Head(tensors["weight"], tensors["bias"])
    inputs = {name: batches(name)[0][0] for name in ("train", "test", "noise")}
    functions = network_functions(model, inputs["train"])
    for name, expected in json.loads((EXPECTED / "reference_scores.json").read_text(encoding="utf-8")).items():
        sees = METHODS[parse_method(name)[0]].sees
        data = (bank, head) if sees == "features" else (functions[sees], batches("train"))
        detector = ff.create(name).fit(*data)
        for part, confidences in expected.items():
            got = detector(tensors[part] if sees == "features" else inputs[part][:12])
            np.testing.assert_allclose(-got.numpy(), confidences, rtol=2e-6, err_msg=name)


def test_methods_agree_with_their_peers():
    """For the same float32 inputs: pytorch-ood 0.4.0, and the steps of the authors' code of NECO and OptFS.

    Signs are ours, and OptFS is not multiplied by 1000. pytorch-ood ran with torch 2.6.0, its defaults and the golden
    head: ``LTS``, ``PNML`` and ``VRA``, each by its function for features.
    """
    tensors = load()
    bank, head = ff.FeatureBank(tensors["features"], tensors["labels"]), ff.Head(tensors["weight"], tensors["bias"])
    for peer, methods in json.loads((EXPECTED / "peer_scores.json").read_text(encoding="utf-8")).items():
        for name, expected in methods.items():
            detector = ff.create(name).fit(bank, head)
            for part, scores in expected.items():
                np.testing.assert_allclose(detector(tensors[part]), scores, rtol=1e-5, err_msg=f"{peer} {name}")


def test_metrics():
    """AUROC, FPR and AUPR of scores with ties, both ways round."""
    tensors = load()
    known, unknown = (tensors[name][:, 0].double().mul(4).round() for name in ("features", "unknown"))
    found = {}
    for order, pair in {"usual": (known, unknown), "swapped": (unknown, known)}.items():
        found[order] = {"auroc": ff.auroc(*pair)}
        for positive in ("ood", "id"):
            found[order][f"fpr {positive}"] = ff.fpr_at_tpr(*pair, positive=positive)
            found[order][f"aupr {positive}"] = ff.aupr(*pair, positive=positive)
    check("metrics", found)

"""Every runtime gives the same verdicts on real networks, to the margin that the calibration allows for."""

import importlib.util
from pathlib import Path

import pytest
import torch

import flatfold as ff
from flatfold.data.sources import take_subset
from flatfold.network.model_loading import load_weights, make_model
from flatfold.scoring.calibrated import ROUNDING, spread_of
from tests.real.conftest import images

NAMES = ["torch", *(["onnx"] if importlib.util.find_spec("onnxruntime") else []), "torch-compile"]
METHODS = ("fourfold", "fold", "autofold", "msp", "ebo", "mds", "knn", "vim", "klm")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("depth", [20, 56])
def test_scores_and_decisions_do_not_depend_on_the_runtime(data, depth):
    model = make_model(f"cifar_resnet:resnet{depth}", Path(__file__).parents[2] / "examples", seed=0)
    load_weights(model, data / f"cifar10_resnet{depth}.safetensors")
    val = take_subset(images(data, "cifar10_test"), 1000, 0)
    batches = [x for name in ("cifar10_test", "svhn_test_4k") for x, _ in take_subset(images(data, name), 500, 1)]
    guards = {name: ff.Guard.fit(model.eval(), val, method=name) for name in METHODS}
    plain = [guards["msp"].network(x) for x in batches]
    for runtime in NAMES if depth == 20 else NAMES[:-1]:
        guards["msp"].use_runtime(runtime)
        others = [guards["msp"].network(x) for x in batches]
        assert guards["msp"].network.runtime.chosen_name == runtime
        for name, guard in guards.items():
            spread = spread_of(guard.calibration.scores)
            for mine, theirs in zip(plain, others, strict=True):
                a, b = guard.calibrated.decide(*mine), guard.calibrated.decide(*theirs)
                allowed = ROUNDING * a.score.abs().clamp_min(spread)
                assert ((a.score - b.score).abs() <= allowed).all(), (runtime, name)
                near = (a.score - guard.calibration.threshold[0]).abs() <= allowed
                assert torch.equal(a.is_ood | near, b.is_ood | near), (runtime, name)
                assert float(near.double().mean()) < 0.01

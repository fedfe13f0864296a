"""Guards that are fitted with one runtime and used with another: the same verdicts, and the same false-alarm rate."""

import numpy as np
import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.network.execution import Execution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Skipping serialization"),
]
FITS, RATE, NEW = 200, 0.1, 200
METHODS = ("fold", "fourfold", "msp", "knn:k=5", "mds", "ebo", "react", "autofold")


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    ).eval()


def images(n, seed):
    """Four classes, each with a bright quarter."""
    g = torch.Generator().manual_seed(seed)
    x, y = torch.rand(n, 1, 8, 8, generator=g), torch.arange(n) % 4
    for i, label in enumerate(y.tolist()):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[i, 0, row : row + 4, column : column + 4] += 1
    return x, y


def fit(model, cache, runtime, number):
    execution = Execution(runtime=runtime, onnx_cache=cache)
    x, y = images(120, number)
    data = list(zip(x.split(40), y.split(40), strict=True))
    method = METHODS[number % len(METHODS)]
    return ff.Guard.fit(model, data, method=method, fpr=RATE, seed=number, execution=execution)


def assert_same_verdicts(before, after, guard, case):
    """Decisions may differ only where the score is as near to the threshold as rounding."""
    spread = float(guard.calibration.scores.double().std())
    near = (before.score - guard.calibration.threshold).abs() <= 1e-4 * spread
    assert torch.equal(before.is_ood[~near], after.is_ood[~near]), case
    assert torch.equal(before.predicted, after.predicted), case
    assert float((before.score - after.score).abs().max()) <= 1e-3 * spread, case


def test_guards_keep_their_verdicts_and_their_rate_with_another_runtime(tmp_path):
    pytest.importorskip("onnxruntime")
    model, cache, alarms = make_model(), tmp_path / "graph", []
    for number in range(FITS):
        first, second = ("torch", "onnx") if number % 2 else ("onnx", "torch")
        guard = fit(model, cache, first, number)
        x, _ = images(NEW, 10_000 + number)
        x = torch.cat([x, torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(number))])
        guard.save(tmp_path / "guard.safetensors")
        guard.use_runtime(first, None, cache)
        before = guard(x)
        loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
        loaded.use_runtime(second, None, cache)
        after = loaded(x)
        assert str(guard.network.runtime).startswith(first), number
        assert str(loaded.network.runtime).startswith(second), number
        assert_same_verdicts(before, after, guard, f"{number}: {first} to {second}")
        alarms.append(float(after.is_ood[:NEW].double().mean()))
    error = np.std(alarms) / FITS**0.5
    assert RATE / 2 < np.mean(alarms) < RATE + 3 * error, (np.mean(alarms), error)


@pytest.mark.parametrize("number", [0, 1])
def test_a_compiled_network_gives_the_verdicts_of_the_fit(tmp_path, number):
    model, cache = make_model(), tmp_path / "graph"
    guard = fit(model, cache, "torch", number)
    x, _ = images(NEW, 20_000 + number)
    before = guard(x)
    guard.use_runtime("torch-compile", None, cache)
    assert_same_verdicts(before, guard(x), guard, number)
    guard.use_runtime("torch", None, cache)
    assert torch.equal(guard(x).score, before.score)


def test_a_runtime_that_computes_something_else_is_refused_when_it_is_chosen(tmp_path, monkeypatch):
    """The guard does not give a verdict with it, and goes on with the runtime that it had."""
    pytest.importorskip("onnxruntime")
    from flatfold.network.runtime import OnnxRuntime

    model, cache = make_model(), tmp_path / "graph"
    guard = fit(model, cache, "torch", 0)
    real = OnnxRuntime.__call__

    def wrong(self, batch):
        result = real(self, batch)
        return result._replace(logits=1.001 * result.logits)

    monkeypatch.setattr(OnnxRuntime, "__call__", wrong)
    guard.use_runtime("onnx", None, cache)
    with pytest.raises(ValueError, match="differ from those of torch"):
        guard(images(NEW, 7)[0])

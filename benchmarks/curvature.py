"""Curvature over parameters against PyHessian: exact where it estimates, and how much either costs."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from flatfold.curvature import param_lambda_max, param_trace
from flatfold.curvature.estimate import LOSSES
from flatfold.network.model_loading import load_weights

from .ratio import report, seconds

EXAMPLES = Path(__file__).parents[1] / "examples"
PROBES = 10
LOSS = "ce_pred"


def resnet20() -> tuple[nn.Module, Tensor]:
    """Return the trained network of the example and 64 CIFAR-10 images, or random ones where there are none."""
    sys.path.insert(0, str(EXAMPLES))
    from cifar_resnet import resnet20 as make

    torch.manual_seed(0)
    model = make().eval()
    data = os.environ.get("FLATFOLD_DATA")
    if data is None:
        print("      FLATFOLD_DATA is not set: ResNet-20 has random weights and sees noise")
        return model, torch.randn(64, 3, 32, 32)
    load_weights(model, Path(data) / "cifar10_resnet20.safetensors")
    pixels = np.load(Path(data) / "cifar10_test.npz")["x"][:64]
    mean_, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return model, ((torch.from_numpy(pixels) / 255 - mean_) / std).permute(0, 3, 1, 2).contiguous()


def peer(model: nn.Module, x: Tensor) -> Any:
    """Return PyHessian's view of a batch, with the cross-entropy of the predicted classes as its loss."""
    from pyhessian import hessian as pyhessian

    return pyhessian(model, nn.CrossEntropyLoss(), data=(x, model(x).argmax(-1)), cuda=False)


@contextmanager
def counted_products() -> Iterator[list[int]]:
    """Count the Hessian-vector products that PyHessian makes."""
    module = sys.modules["pyhessian.hessian"]
    count = [0]
    original = module.hessian_vector_product  # type: ignore[attr-defined]

    def product(*given: Any) -> Any:
        count[0] += 1
        return original(*given)

    module.hessian_vector_product = product  # type: ignore[attr-defined]
    try:
        yield count
    finally:
        module.hessian_vector_product = original  # type: ignore[attr-defined]


def per_sample_trace(model: nn.Module, x: Tensor) -> list[bool]:
    """Time the exact traces of a batch against PyHessian's estimates, one image after the other."""
    few = x[:8]

    def theirs() -> list[float]:
        return [float(np.mean(peer(model, one[None]).trace(maxIter=PROBES, tol=-np.inf))) for one in few]

    def ours() -> Tensor:
        return param_trace(model, [x], level="sample", loss=LOSS).value  # type: ignore[return-value]

    exact = param_trace(model.double(), [x.double()], level="sample", loss=LOSS).value
    model.float()
    errors = ((ours() - exact) / exact).abs()
    estimates = np.array(theirs())
    off = float(np.median(np.abs(estimates / np.asarray(exact[: len(few)]) - 1)))
    ratio = median(seconds(theirs) / len(few) / (seconds(ours) / len(x)) for _ in range(7))
    print(f"      largest relative error of ours, on the surest image: {float(errors.max()):.1e}")
    print(f"      its estimates from {PROBES} probes are off by {100 * off:.0f} % (median)")
    return [
        report(f"trace of single images, ResNet-20, against PyHessian's loop with {PROBES} probes", ratio, "times", 15),
        report("relative error of ours in float32 (median)", float(errors.median()), "", 1e-5, at_least=False),
    ]


def data_set_trace(model: nn.Module, x: Tensor) -> list[bool]:
    """Compare the cost of the exact trace with one Hessian-vector product of PyHessian on the same images."""
    from pyhessian.utils import hessian_vector_product

    viewed = peer(model, x)

    def product() -> None:  # as its loader does: gradient, then product
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, logits.argmax(-1))
        slopes = torch.autograd.grad(loss, viewed.params, create_graph=True)
        hessian_vector_product(slopes, viewed.params, [torch.ones_like(one) for one in viewed.params])

    ratio = median(seconds(lambda: param_trace(model, [x], loss=LOSS)) / seconds(product) for _ in range(3))
    return [report("exact trace of a data set, in Hessian-vector products", ratio, "products", 5, at_least=False)]


def largest_eigenvalue(model: nn.Module, x: Tensor) -> list[bool]:
    """Compare error and number of products at default settings."""
    model.double()
    truth = float(param_lambda_max(model, [x.double()], loss=LOSS, rtol=1e-12, max_matvecs=60).value)
    model.float()
    ours = [param_lambda_max(model, [x], loss=LOSS, seed=seed) for seed in range(3)]
    error = max(abs(float(one.value) / truth - 1) for one in ours)
    errors, products = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        with counted_products() as count:
            (found,), _ = peer(model, x).eigenvalues()
        errors.append(abs(found / truth - 1))
        products.append(count[0])
    print(f"      PyHessian's power iteration: {max(errors):.1e} after {min(products)} to {max(products)} products")
    return [
        report("largest eigenvalue of the Hessian, relative error", error, "", 1e-5, at_least=False),
        report("products it took", max(one.matvecs for one in ours), "", 15, at_least=False),
    ]


def digits_network(activation: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    """Return a small convolutional network trained for a moment on scikit-learn's digits, and 64 of them."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), activation(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 2), activation(), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[64:]), y[64:]).backward()
        optimiser.step()
    return model.eval().requires_grad_(True), x[:64]


def dense_trace(model: nn.Module, x: Tensor) -> float:
    """Return the trace of the whole Hessian, built in float64."""
    values = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    y = model(x).argmax(-1)
    model.double()
    loss = nn.functional.cross_entropy
    blocks = hessian(lambda given: loss(functional_call(model, given, (x.double(),)), y))(values)
    model.float()
    return sum(float(blocks[name][name].reshape(one.numel(), -1).trace()) for name, one in values.items())


def default_trace() -> list[bool]:
    """Compare the errors at default settings: on a smooth network, where both estimate, and on one with ReLU."""
    made = []
    for name, activation in (("tanh", nn.Tanh), ("ReLU", nn.ReLU)):
        model, x = digits_network(activation)
        truth = dense_trace(model, x)
        ours = [param_trace(model, [x[:32], x[32:]], loss=LOSS, seed=seed) for seed in range(20)]
        error = mean((float(one.value) / truth - 1) ** 2 for one in ours) ** 0.5
        errors, probes = [], []
        for seed in range(20):
            torch.manual_seed(seed)
            values = peer(model, x).trace()
            errors.append((np.mean(values) / truth - 1) ** 2)
            probes.append(len(values))
        rms = mean(errors) ** 0.5
        print(
            f"      trace {truth:.4g}; PyHessian: {100 * rms:.1f} % (rms) after {min(probes)} to {max(probes)} probes"
        )
        what = f"trace of a {name} network at default settings, relative error (rms), by {ours[0].method}"
        made.append(report(what, 100 * error, "%", 3, at_least=False))
    return made


def run() -> list[bool]:
    """Measure all, if PyHessian is there."""
    if find_spec("pyhessian") is None:
        print("skip  curvature against PyHessian: it is not installed; `make bench` does that")
        return []
    print(f"      loss everywhere: {LOSSES[LOSS]}")
    model, x = resnet20()
    return [*per_sample_trace(model, x), *data_set_trace(model, x), *largest_eigenvalue(model, x), *default_trace()]

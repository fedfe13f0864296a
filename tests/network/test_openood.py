"""Networks of OpenOOD: each name and shape of a checkpoint, and a slow forward pass from nothing but these."""

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d
from torch.testing import assert_close

from flatfold import extract
from flatfold.network.model_loading import load_weights
from flatfold.network.openood import openood_network

# block, channels in, channels inside, channels out, stride; a shortcut with weights wherever in and out differ
TWO_PER_STAGE = [
    (f"layer{stage + 1}.{block}", *channels, 2 if stage and not block else 1)
    for stage, out in enumerate([64, 128, 256, 512])
    for block, channels in enumerate([(max(out // 2, 64), out, out), (out, out, out)])
]
THREE_FOUR_SIX_THREE = [
    (f"layer{stage + 1}.{block}", 4 * inside if block else before, inside, 4 * inside, 2 if stage and not block else 1)
    for stage, (blocks, before, inside) in enumerate([(3, 64, 64), (4, 256, 128), (6, 512, 256), (3, 1024, 512)])
    for block in range(blocks)
]
# blocks, name of the shortcut, size of the first convolution, classes of the published checkpoint, names, parameters
NETWORKS = {
    "resnet18_32x32": (TWO_PER_STAGE, "shortcut", 3, 10, 122, 11_173_962),
    "resnet18_224x224": (TWO_PER_STAGE, "downsample", 7, 1000, 122, 11_689_512),
    "resnet50": (THREE_FOUR_SIX_THREE, "downsample", 7, 1000, 320, 25_557_032),
}
EVERY = pytest.mark.parametrize("name", NETWORKS)


def norm(name, channels):
    vectors = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**vectors, f"{name}.num_batches_tracked": ()}


def shapes(name, n_classes):
    """The shape of every weight of a checkpoint."""
    blocks, shortcut, size, *_ = NETWORKS[name]
    expected = {"conv1.weight": (64, 3, size, size), **norm("bn1", 64)}
    for block, inputs, inside, outputs, _stride in blocks:
        if blocks is TWO_PER_STAGE:
            convolutions = [(inside, inputs, 3, 3), (outputs, inside, 3, 3)]
        else:
            convolutions = [(inside, inputs, 1, 1), (inside, inside, 3, 3), (outputs, inside, 1, 1)]
        for i, shape in enumerate(convolutions, start=1):
            expected |= {f"{block}.conv{i}.weight": shape, **norm(f"{block}.bn{i}", shape[0])}
        if inputs != outputs:
            expected |= {
                f"{block}.{shortcut}.0.weight": (outputs, inputs, 1, 1),
                **norm(f"{block}.{shortcut}.1", outputs),
            }
    return {**expected, "fc.weight": (n_classes, blocks[-1][3]), "fc.bias": (n_classes,)}


def made_by_hand(name, n_classes, seed=0):
    """A state dict of float64 numbers, none of which is what a new network has; variances are positive."""
    g = torch.Generator().manual_seed(seed)
    state = {}
    for key, shape in shapes(name, n_classes).items():
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(7)
        elif key.endswith("running_var"):
            state[key] = torch.rand(shape, generator=g, dtype=torch.float64) + 0.5
        else:
            fan_in = torch.Size(shape[1:]).numel() if len(shape) > 1 else 4
            state[key] = torch.randn(shape, generator=g, dtype=torch.float64) / fan_in**0.5
    return state


def normed(x, state, name):
    weight, bias, mean, var = (
        state[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def pooled_features(name, state, x):
    """The network once more, slowly, from its state dict alone."""
    blocks, shortcut, size, *_ = NETWORKS[name]
    x = conv2d(x, state["conv1.weight"], stride=1 if size == 3 else 2, padding=size // 2)
    x = normed(x, state, "bn1").clamp(min=0)
    x = x if size == 3 else max_pool2d(x, 3, stride=2, padding=1)
    for block, inputs, _inside, outputs, stride in blocks:
        y = x
        kernels = [3, 3] if blocks is TWO_PER_STAGE else [1, 3, 1]
        for i, kernel in enumerate(kernels, start=1):
            step = stride if kernel == 3 and (i == 1 or len(kernels) == 3) else 1
            y = conv2d(y, state[f"{block}.conv{i}.weight"], stride=step, padding=kernel // 2)
            y = normed(y, state, f"{block}.bn{i}")
            y = y.clamp(min=0) if i < len(kernels) else y
        if inputs != outputs:
            x = conv2d(x, state[f"{block}.{shortcut}.0.weight"], stride=stride)
            x = normed(x, state, f"{block}.{shortcut}.1")
        x = (x + y).clamp(min=0)
    return x.flatten(2).sum(2) / (x.shape[2] * x.shape[3])


def images(n=2, size=34):
    return torch.randn(n, 3, size, size + 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@EVERY
def test_a_published_checkpoint_fits_and_comes_back_as_it_was(name, tmp_path):
    *_, n_classes, names, parameters = NETWORKS[name]
    model = openood_network(name, n_classes)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == shapes(name, n_classes)
    assert len(model.state_dict()) == names
    assert sum(value.numel() for value in model.parameters()) == parameters
    state = {key: value.float() if value.ndim else value for key, value in made_by_hand(name, 6).items()}
    torch.save(state, tmp_path / "best.ckpt")
    model = openood_network(name, 6)
    load_weights(model, tmp_path / "best.ckpt")
    got = model.state_dict()
    assert got.keys() == state.keys()
    assert all(torch.equal(got[key], state[key]) for key in state)


@EVERY
def test_features_and_logits_agree_with_a_slow_pass(name):
    state = made_by_hand(name, 5)
    model = openood_network(name, 5).double()
    model.load_state_dict(state)
    expected = pooled_features(name, state, images())
    bank, head = extract(model, [images()])
    assert_close(bank.features, expected, rtol=1e-9, atol=1e-12)
    assert_close(model.eval()(images()), expected @ state["fc.weight"].T + state["fc.bias"], rtol=1e-9, atol=1e-12)
    assert torch.equal(head.weight, state["fc.weight"])
    assert bank.features.min() >= 0
    assert bank.features.max() > 0

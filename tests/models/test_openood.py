"""`models.openood`: each name and shape of a checkpoint, written by hand, and a forward pass from nothing but these."""

import pytest
import torch
from torch.nn.functional import conv2d
from torch.testing import assert_close

from flatfold.models.extract import extract
from flatfold.models.heads import find_head
from flatfold.models.openood import openood_network
from flatfold.models.weights import load_weights

# block, channels in, channels inside, channels out, stride; a shortcut with weights wherever in and out differ
TWO_PER_STAGE = [
    ("layer1.0", 64, 64, 64, 1),
    ("layer1.1", 64, 64, 64, 1),
    ("layer2.0", 64, 128, 128, 2),
    ("layer2.1", 128, 128, 128, 1),
    ("layer3.0", 128, 256, 256, 2),
    ("layer3.1", 256, 256, 256, 1),
    ("layer4.0", 256, 512, 512, 2),
    ("layer4.1", 512, 512, 512, 1),
]
THREE_FOUR_SIX_THREE = [
    ("layer1.0", 64, 64, 256, 1),
    ("layer1.1", 256, 64, 256, 1),
    ("layer1.2", 256, 64, 256, 1),
    ("layer2.0", 256, 128, 512, 2),
    ("layer2.1", 512, 128, 512, 1),
    ("layer2.2", 512, 128, 512, 1),
    ("layer2.3", 512, 128, 512, 1),
    ("layer3.0", 512, 256, 1024, 2),
    ("layer3.1", 1024, 256, 1024, 1),
    ("layer3.2", 1024, 256, 1024, 1),
    ("layer3.3", 1024, 256, 1024, 1),
    ("layer3.4", 1024, 256, 1024, 1),
    ("layer3.5", 1024, 256, 1024, 1),
    ("layer4.0", 1024, 512, 2048, 2),
    ("layer4.1", 2048, 512, 2048, 1),
    ("layer4.2", 2048, 512, 2048, 1),
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


def largest_of_3x3(x):
    """Every second pixel gets the largest of its 3x3 neighbourhood; nothing lies outside of the image."""
    n, c, h, w = x.shape
    out = torch.empty(n, c, (h + 1) // 2, (w + 1) // 2, dtype=x.dtype)
    for i in range(out.shape[2]):
        for j in range(out.shape[3]):
            out[:, :, i, j] = x[:, :, max(2 * i - 1, 0) : 2 * i + 2, max(2 * j - 1, 0) : 2 * j + 2].amax((2, 3))
    return out


def pooled_features(name, state, x):
    """The network once more, slowly, from its state dict alone."""
    blocks, shortcut, size, *_ = NETWORKS[name]
    x = conv2d(x, state["conv1.weight"], stride=1 if size == 3 else 2, padding=size // 2)
    x = normed(x, state, "bn1").clamp(min=0)
    x = x if size == 3 else largest_of_3x3(x)
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
def test_every_name_and_shape_is_that_of_a_checkpoint(name):
    *_, n_classes, names, parameters = NETWORKS[name]
    model = openood_network(name, n_classes)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == shapes(name, n_classes)
    assert len(model.state_dict()) == names
    assert sum(value.numel() for value in model.parameters()) == parameters


@EVERY
def test_a_checkpoint_comes_back_as_it_was(name, tmp_path):
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


@EVERY
def test_the_head_is_fc_and_features_are_never_negative(name):
    model = openood_network(name, 4)
    assert find_head(model, images().float()).name == "fc"
    features = extract(model, [images().float()])[0].features
    assert features.shape == (2, NETWORKS[name][0][-1][3])
    assert features.min() >= 0
    assert features.max() > 0


def test_a_small_image_keeps_its_size_at_the_start_and_a_large_one_is_quartered():
    seen = {}
    for name in ("resnet18_32x32", "resnet18_224x224"):
        model = openood_network(name, 2).eval()
        model.layer1.register_forward_hook(lambda _m, args, _out, name=name: seen.update({name: args[0].shape[2:]}))
        model(torch.zeros(1, 3, 32, 32))
    assert seen == {"resnet18_32x32": (32, 32), "resnet18_224x224": (8, 8)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18_32", r"OpenOOD has no network 'resnet18_32' here\. Did you mean resnet18_32x32\?"),
        ("vit", r"no network 'vit' here\. There are resnet18_32x32, resnet18_224x224, resnet50\."),
    ],
)
def test_a_network_of_another_name_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        openood_network(name, 10)


@pytest.mark.parametrize("n_classes", [0, -1, 2.0, True, None])
def test_a_number_of_classes_that_is_none_is_refused(n_classes):
    with pytest.raises(ValueError, match=rf"n_classes must be a positive whole number, got {n_classes}\."):
        openood_network("resnet50", n_classes)

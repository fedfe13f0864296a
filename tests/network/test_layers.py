"""A model as a function to its layers, and one number per image kept on disk."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.images import ArrayImages
from flatfold.passes.inputs import labelled_batches, score_inputs
from tests.refusals import refused


class Functional(nn.Module):
    """Its activations are functions, so no module's output is the stem."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv3 = nn.Conv2d(4, 8, 3, 2, 1)
        self.conv4 = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 3)
        self.finished = 0

    def forward(self, x):
        self.one = self.bn1(self.conv1(x)).relu()
        self.two = self.conv2(self.one).relu()
        self.three = self.conv3(self.two).relu()
        self.four = self.conv4(self.three).relu().mean((2, 3))
        self.finished += 1
        return self.fc(self.four)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Functional().eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_stem_stages_and_named_layers_are_the_activations_of_the_model(model):
    (stem,) = ff.layers_of(model, X, "stem")(X)
    stages = ff.layers_of(model, X, "stages")(X)
    named = ff.layers_of(model, X, ["bn1", "conv3"])(X)
    model(X)
    assert_close(stem, model.one)  # what goes into the second convolution
    for layer, expected in zip(stages, [model.one, model.two, model.four], strict=True):
        assert_close(layer, expected)  # the last activation of each resolution, and the features
    assert_close(named[0], model.bn1(model.conv1(X)))
    assert_close(named[1], model.conv3(model.two))


def test_a_pass_ends_when_all_layers_have_been_seen_and_gradients_flow_back(model):
    stem = ff.layers_of(model, X, "stem")
    before, x = model.finished, X.clone().requires_grad_()
    stem(x)[0].sum().backward()
    assert model.finished == before
    assert x.grad.abs().sum() > 0


class Shared(nn.Module):
    """Calls one convolution twice, once by keyword, and another one never."""

    def __init__(self):
        super().__init__()
        self.conv, self.spare = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        self.one = self.conv(x).relu()
        return self.fc(self.conv(input=self.one).relu().mean((2, 3)))


def test_a_convolution_that_is_called_twice_has_two_inputs():
    shared = Shared().eval()
    (layer,) = ff.layers_of(shared, X, "stem")(X)
    shared(X)
    assert_close(layer, shared.one)


def test_linear_layers_take_the_place_of_convolutions_where_there_are_none():
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 5), nn.Linear(5, 3)]
    net, x = nn.Sequential(*layers).eval(), torch.randn(4, 3, 2, 2)
    inputs = [net[:end](x) for end in (3, 5, 6)]
    (stem,) = ff.layers_of(net, x, "stem")(x)
    assert_close(stem, inputs[0])
    assert_close(ff.layers_of(net, x, "stages")(x), inputs)
    data = [(torch.randn(60, 3, 2, 2) + 3 * (torch.arange(60) % 3).view(-1, 1, 1, 1), torch.arange(60) % 3)]
    for wanted in ("stem", "stages"):
        detector = ff.create("mdsens", layers=wanted).fit(ff.layers_of(net, x, wanted), data)
        assert detector(x).isfinite().all()
    tokens = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Flatten(), nn.Linear(12, 3)).eval()  # rows of 3 tokens
    with refused("tokens", "called 0 and 1"):
        ff.layers_of(tokens, torch.randn(2, 3, 4), "stem")


def test_layers_that_cannot_be_given_are_refused(model):
    for case, net, x, wanted, keyword in [
        ("no second convolution", nn.Linear(4, 3).eval(), torch.zeros(1, 4), "stem", "called 0"),
        ("no such layer", model, X, ["conv9"], "conv1, bn1"),
        ("no layers", model, X, [], "conv1, bn1"),
        ("no such kind", model, X, "trunk", "'stem'"),
        ("several inputs", model, {"pixel_values": X, "mask": X}, "stem", "one input"),
        ("never called", Shared().eval(), X, ["conv", "spare"], "without spare"),
    ]:
        with refused(case, keyword):
            ff.layers_of(net, x, wanted)(x)


def test_a_model_in_training_mode_is_refused_and_not_even_run(model):
    functions = ff.logits_function(model), ff.layers_of(model, X, "stem")
    before = model.bn1.running_mean.clone()
    model.bn1.train()  # a part is enough
    for function in (*functions, lambda x: ff.layers_of(model, x, "stem")):
        with refused(function, "training mode"):
            function(X)
    assert torch.equal(model.bn1.running_mean, before)


def test_layers_are_as_they_were_when_the_model_changes_them_in_place():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)).eval()
    net(X)
    alone, together = ff.layers_of(net, X, ["1"])(X)[0], ff.layers_of(net, X, ["1", "3"])(X)[0]
    assert bool((alone < 0).any())
    assert_close(together, alone)


def test_logits_have_a_gradient_in_every_layer_and_are_those_of_the_model(model):
    for wanted, count in (((), 1), ("stem", 2), ("stages", 3), (["bn1", "conv3"], 3)):
        layers, head = ff.layers_and_head(model, X, wanted)(X)
        assert len(layers) == count
        assert_close(head(layers[-1]), model(X))
    assert_close(layers[1], model.conv3(model.two))
    (gradient,) = torch.autograd.grad(head(layers[-1])[:, 0].sum(), layers[1])
    tail = layers[1].detach().requires_grad_()
    model.fc(model.conv4(tail.relu()).relu().mean((2, 3)))[:, 0].sum().backward()
    assert_close(gradient, tail.grad)


def test_the_head_of_layers_may_be_named_a_convolution_or_a_single_logit():
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    convolution = nn.Sequential(*body, nn.Conv2d(4, 3, 1), nn.Flatten()).eval()
    single = nn.Sequential(*body, nn.Flatten(), nn.Linear(4, 1)).eval()
    softmax = nn.Sequential(*body, nn.Flatten(), nn.Linear(4, 3), nn.Softmax(-1)).eval()
    for net, name, expected in (
        (convolution, None, convolution(X)),
        (single, None, ff.logits_function(single)(X)),
        (softmax, "4", softmax[:-1](X)),
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the model does not return the output of '4'")
            (features,), head = ff.layers_and_head(net, X, head=name)(X)
        assert features.shape == (2, 4)
        assert_close(head(features), expected)


def test_a_layer_that_is_changed_in_place_has_no_gradient_and_is_refused():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3)
    ).eval()
    with refused("changed in place", "1 in place"):
        ff.layers_and_head(net, X, ["1"])(X)
    layers, head = ff.layers_and_head(net, X, ["2"])(X)
    assert_close(head(layers[1]), net(X))


def test_logits_are_found_in_what_the_model_returns(model):
    expected = model(X)
    model.register_forward_hook(lambda module, args, out: {"logits": out})
    assert_close(ff.logits_function(model)(X), expected)


def source(seed=0, labels=None, n=40):
    x = np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    return ArrayImages(x, labels, ff.Transform(mode="L"), batch_size=16)


def sums(x):
    return x.sum((1, 2, 3))


def test_every_image_gets_its_score_in_evaluation_mode_and_other_images_are_refused(tmp_path):
    net, modes = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 2)).train(), []
    scores = score_inputs(lambda x: modes.append(net.training) or sums(x), net, source(), tmp_path / "s", {})
    assert_close(scores, torch.cat([sums(x) for x in source()]))
    assert modes == [False, False, False]
    assert net.training
    with pytest.raises(ValueError, match="labels are needed"):
        list(labelled_batches(source(), "cpu", "fitting"))
    with pytest.raises(ValueError, match="other"):
        score_inputs(sums, net, source(1), tmp_path / "s", {})
    bad = source().read(range(20, 21))[0]
    with pytest.raises(ValueError, match="finite, but row 20"):
        score_inputs(lambda x: sums(x) / (x != bad).any((1, 2, 3)), net, source(), tmp_path / "t", {})

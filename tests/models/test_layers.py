"""A model as a function to its layers."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff


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


def test_the_stem_is_what_goes_into_the_second_convolution(model):
    stem = ff.layers_of(model, X, "stem")
    (layer,) = stem(X)
    model(X)
    assert_close(layer, model.one)


def test_the_stages_are_the_last_activation_of_each_resolution_and_the_features(model):
    layers = ff.layers_of(model, X, "stages")(X)
    model(X)
    for layer, expected in zip(layers, [model.one, model.two, model.four], strict=True):
        assert_close(layer, expected)


def test_named_layers_are_what_comes_out_of_them(model):
    layers = ff.layers_of(model, X, ["bn1", "conv3"])(X)
    assert_close(layers[0], model.bn1(model.conv1(X)))
    assert layers[1].shape == (2, 8, 4, 4)


def test_a_pass_ends_when_all_layers_have_been_seen(model):
    stem = ff.layers_of(model, X, "stem")
    before = model.finished
    stem(X)
    assert model.finished == before


def test_gradients_flow_back_to_the_input(model):
    x = X.clone().requires_grad_()
    (layer,) = ff.layers_of(model, X, "stem")(x)
    layer.sum().backward()
    assert x.grad.abs().sum() > 0


def test_a_model_without_a_second_convolution_has_no_stem():
    with pytest.raises(ValueError, match=r"second convolution, but this one called 0. Name the layers to use"):
        ff.layers_of(nn.Linear(4, 3), torch.zeros(1, 4), "stem")


@pytest.mark.parametrize("wanted", [["conv9"], [], "trunk"])
def test_layers_that_do_not_exist_are_refused(model, wanted):
    with pytest.raises(ValueError, match=r"must be 'stem', 'stages' or names of modules, got .* has conv1, bn1,"):
        ff.layers_of(model, X, wanted)


def test_logits_are_found_in_what_the_model_returns():
    class Wrapped(nn.Module):
        def forward(self, x):
            return {"logits": 2 * x}

    assert_close(ff.logits_function(Wrapped().eval())(X), 2 * X)


def test_a_model_in_training_mode_is_refused_when_it_is_run(model):
    functions = ff.logits_function(model), ff.layers_of(model, X, "stem")
    model.train()
    for function in functions:
        with pytest.raises(ValueError, match="in training mode, where scores are random"):
            function(X)

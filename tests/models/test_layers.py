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
        ff.layers_of(nn.Linear(4, 3).eval(), torch.zeros(1, 4), "stem")


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


def test_a_model_in_training_mode_is_not_even_looked_at(model):
    before = model.bn1.running_mean.clone()
    model.bn1.train()  # a part is enough
    with pytest.raises(ValueError, match="in training mode"):
        ff.layers_of(model, X, "stem")
    assert torch.equal(model.bn1.running_mean, before)


def test_layers_are_as_they_were_when_the_model_changes_them_in_place():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)).eval()
    net(X)
    alone, together = ff.layers_of(net, X, ["1"])(X)[0], ff.layers_of(net, X, ["1", "3"])(X)[0]
    assert bool((alone < 0).any())
    assert_close(together, alone)


class Shared(nn.Module):
    """Calls one convolution twice, once by keyword."""

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


def test_a_layer_that_takes_no_part_is_told():
    with pytest.raises(ValueError, match=r"the model runs without spare. Name layers that take part"):
        ff.layers_of(Shared().eval(), X, ["conv", "spare"])(X)


def test_layers_in_one_dimension_and_layers_in_tuples_are_found():
    sound = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.Flatten(), nn.LazyLinear(2)).eval()
    waves = torch.randn(2, 2, 9)
    sound(waves)
    assert ff.layers_of(sound, waves, "stem")(waves)[0].shape == (2, 4, 7)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.fc = nn.GRU(9, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x):
            return self.fc(self.gru(x)[0][:, -1])

    assert ff.layers_of(Recurrent().eval(), waves, ["gru"])(waves)[0].shape == (2, 2, 5)


def test_the_first_stage_is_not_the_image_and_a_last_convolution_counts_once():
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    net = nn.Sequential(*body, nn.Conv2d(5, 3, 1), nn.Flatten()).eval()
    assert [tuple(layer.shape[1:]) for layer in ff.layers_of(net, X, "stages")(X)] == [(4, 4, 4), (5, 1, 1)]


def test_a_model_of_several_inputs_is_refused(model):
    with pytest.raises(ValueError, match="models that take one input"):
        ff.layers_of(model, {"pixel_values": X, "mask": X}, "stem")

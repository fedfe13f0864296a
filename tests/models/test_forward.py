"""`models.forward`: the model is left exactly as it was, whatever happens in between."""

import pytest
import torch
from torch import nn

from flatfold.models.at_rest import as_it_was
from flatfold.models.extract import extract
from flatfold.models.heads import find_head

X = torch.ones(2, 4)


def mixed_model():
    """A model with some modules in training mode and some not, gradients, and hooks of its own."""
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(4, 3))
    )
    model[1].eval()
    model[3][0].eval()
    model[0].weight.requires_grad_(False)
    model(X).sum().backward()
    model[3][1].register_forward_hook(lambda *_: None)
    return model


def state(model):
    """Everything a forward pass might leave behind."""
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone().tolist() for p in model.parameters()],
        "values": {name: value.tolist() for name, value in model.state_dict().items()},
        "devices": {str(p.device) for p in model.parameters()},
        "grad mode": torch.is_grad_enabled(),
    }


def failing_loader():
    yield X
    raise KeyboardInterrupt


@pytest.mark.parametrize("use", [lambda m: find_head(m, X), lambda m: extract(m, [X, X])], ids=["find_head", "extract"])
def test_a_model_is_left_as_it_was(use):
    model = mixed_model()
    before = state(model)
    use(model)
    assert state(model) == before


@pytest.mark.parametrize(
    ("loader", "error"),
    [
        (lambda: [X, torch.ones(2, 9)], ValueError),
        (failing_loader, KeyboardInterrupt),
        (lambda: [X * torch.nan], ValueError),
    ],
    ids=["the forward pass raises", "the loader raises", "features are refused"],
)
def test_a_model_is_left_as_it_was_after_an_exception(loader, error):
    model = mixed_model()
    before = state(model)
    with pytest.raises(error):
        extract(model, loader())
    assert state(model) == before


def test_the_pass_itself_runs_in_evaluation_mode_without_gradients():
    model = mixed_model()
    with as_it_was(model) as device:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        assert device == torch.device("cpu")


def test_an_overridden_train_is_undone_by_its_own_code():
    class Merging(nn.Linear):
        """Merges something into its weights for evaluation, as LoRA layers do."""

        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    model = nn.Sequential(Merging(4, 3))
    with as_it_was(model):
        assert model[0].merged
    assert not model[0].merged


def test_a_module_with_two_parents_gets_its_mode_back():
    shared = nn.Dropout().eval()
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared, nn.Linear(4, 3))).eval()
    model[1].training = True  # visited after `shared`, which its `train` switches as well
    with as_it_was(model):
        pass
    assert not shared.training
    assert model[1].training


class Moving(nn.Linear):
    """Notes where it is sent instead of going there: this machine may have one device only."""

    def __init__(self):
        super().__init__(4, 3)
        self.sent = []

    def to(self, device):
        self.sent.append(str(device))
        return self


def test_a_model_that_was_moved_is_moved_back_even_after_an_exception():
    model = Moving()
    with pytest.raises(RuntimeError):  # the weights stayed on the CPU, the inputs went to "meta"
        extract(model, [X], device="meta")
    assert model.sent == ["meta", "cpu"]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_a_model_that_is_already_there_is_not_moved(device):
    model = Moving()
    extract(model, [X], device=device)
    assert model.sent == []


def test_a_model_on_several_devices_cannot_be_moved_as_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3, device="meta"))
    with (
        pytest.raises(
            ValueError, match=r"device='meta' needs a model that lies on one device, this one lies on cpu, meta"
        ),
        as_it_was(model, "meta"),
    ):
        pass


def test_a_model_without_parameters_runs_on_the_cpu():
    with as_it_was(nn.ReLU()) as device:
        assert device == torch.device("cpu")


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    with (
        pytest.raises(ValueError, match=f"device '{device}' cannot be used here: .* Try 'cpu'"),
        as_it_was(nn.Linear(1, 1), device),
    ):
        pass

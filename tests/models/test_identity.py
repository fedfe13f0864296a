"""`models.identity`: the hash changes with every part of the weights and with nothing else."""

import pytest
import torch
from torch import nn

from flatfold.models.identity import weights_hash


def make_model(seed=0, **options):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3, **options), nn.BatchNorm1d(3))


def one_bit(model):
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nextafter(model[0].weight[0, 0], torch.tensor(9.0))


def statistics(model):
    model[1].running_mean[0] = 1


def counter(model):
    model[1].num_batches_tracked += 1


def other_name(model):
    model.add_module("2", model[0])


@pytest.mark.parametrize("change", [one_bit, statistics, counter, other_name, nn.Module.double, nn.Module.bfloat16])
def test_a_change_of_the_weights_changes_the_hash(change):
    model = make_model()
    before = weights_hash(model)
    change(model)
    assert weights_hash(model) != before


def test_equal_bytes_in_another_shape_give_another_hash():
    wide, tall = nn.ParameterList([torch.zeros(2, 3)]), nn.ParameterList([torch.zeros(3, 2)])
    assert weights_hash(wide) != weights_hash(tall)


def test_the_same_values_under_another_name_give_another_hash():
    layer = nn.Linear(2, 2)
    assert weights_hash(nn.ModuleDict({"a": layer})) != weights_hash(nn.ModuleDict({"b": layer}))


def test_mode_gradients_and_memory_layout_do_not_matter():
    model = make_model()
    before = weights_hash(model)
    model.eval().requires_grad_(False)
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    assert weights_hash(model) == before == weights_hash(make_model())


def test_private_state_of_a_module_is_passed_over():
    class Stateful(nn.Linear):
        def get_extra_state(self):
            return object()

    torch.manual_seed(0)
    plain = nn.Linear(2, 2)
    torch.manual_seed(0)
    assert weights_hash(Stateful(2, 2)) == weights_hash(plain)


def quantised(seed, per_channel=False):
    torch.manual_seed(seed)
    weight = torch.randn(3, 3)
    if per_channel:
        return torch.quantize_per_channel(weight, torch.full((3,), 0.1), torch.zeros(3), 0, torch.qint8)
    return torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated")
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_quantised_weights_count_also_where_a_layer_packs_them(packed, per_channel):
    class Quantised(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.kept = weight

        def _save_to_state_dict(self, destination, prefix, keep_vars):
            destination[prefix + "weight"] = (self.kept, None) if packed else self.kept

    one, same, other = (Quantised(quantised(seed, per_channel)) for seed in (0, 0, 1))
    assert weights_hash(one) == weights_hash(same) != weights_hash(other)


def test_the_weights_are_those_of_evaluation_mode():
    class Merged(nn.Linear):
        def train(self, mode=True):
            if mode != self.training:
                self.weight.data += -1 if mode else 1
            return super().train(mode)

    torch.manual_seed(0)
    model = Merged(2, 2)
    model.weight.data.round_()
    in_training = weights_hash(model)
    assert model.training
    assert weights_hash(model.eval()) == in_training


def test_a_compiled_model_has_the_hash_of_its_own():
    model = make_model()
    assert weights_hash(torch.compile(model, backend="eager")) == weights_hash(model)
    assert weights_hash(nn.Sequential(torch.compile(model, backend="eager"))) == weights_hash(nn.Sequential(model))

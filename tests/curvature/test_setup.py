import pytest
import torch
from torch import nn

from flatfold.curvature.setup import prepared
from flatfold.curvature.task import single_inputs
from flatfold.models.batches import split_batch
from tests.small_networks import Residual, images, make, relu_cnn


def passes(batches, model=None, count=1, **settings):
    with prepared(model or make("relu"), batches, **settings) as task:
        return [[batch.rows for batch in task.each("")] for _ in range(count)], task.rows


@pytest.mark.parametrize(
    "batches", [[images(4), images(2)], [(images(6), torch.zeros(6, dtype=torch.int64))], [{"x": images(6)}]]
)
def test_batches_of_any_kind_are_counted(batches):
    assert passes(batches)[1] == 6


def test_an_iterator_that_ends_is_kept_for_the_next_pass():
    assert passes((images(n) for n in (2, 3)), count=2) == ([[2, 3], [2, 3]], 5)


@pytest.mark.parametrize("batches", [images(3), (images(3), torch.zeros(3, dtype=torch.int64)), {"x": images(3)}, 7])
def test_a_batch_by_itself_is_no_iterable_of_batches(batches):
    with pytest.raises(TypeError, match=r"give a list: \[x\] or \[\(x, labels\)\]"):
        passes(batches)


@pytest.mark.parametrize("batches", [[], [images(0)]])
def test_no_inputs_are_refused(batches):
    with pytest.raises(ValueError, match="there are no inputs"):
        passes(batches)


def test_batches_that_run_dry_are_noticed():
    class Fewer:
        n = 4

        def __iter__(self):
            self.n -= 1
            return iter([images(self.n)])

    with pytest.raises(ValueError, match="gave 3 inputs at first and 2 later"):
        passes(Fewer(), count=2)


def test_the_model_is_left_as_it_was():
    model = relu_cnn().train()
    model[0].eval()
    model[4].bias.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    with prepared(model, [images(2, dtype=torch.float32)], params=["4.bias"]) as task:
        assert not any(module.training for module in model.modules())
        assert task.parameters["4.bias"].requires_grad
    assert [module.training for module in model.modules()] == modes
    assert not model[4].bias.requires_grad
    assert model[0].weight.requires_grad
    assert torch.is_grad_enabled()


def test_it_is_left_as_it_was_after_an_error_too():
    model = relu_cnn().train()
    with pytest.raises(KeyError), prepared(model, [images(2)]):
        raise KeyError
    assert model.training


def test_batch_normalisation_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"bn1 is a batch normalisation that is in training mode.*model\.eval\(\)"):
        passes([images(2)], Residual().train())


def test_batch_normalisation_without_running_statistics_is_refused():
    model = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), relu_cnn()).eval()
    with pytest.raises(ValueError, match="keeps no running statistics"):
        passes([images(2)], model)


def test_only_what_requires_a_gradient_is_taken_by_default():
    model = make("relu")
    model[0].requires_grad_(False)
    with prepared(model, [images(2)]) as task:
        assert list(task.parameters) == ["4.weight", "4.bias"]
        assert task.size == 4 * 12 + 4


@pytest.mark.parametrize(
    ("params", "names"), [("0", ["0.weight", "0.bias"]), (["4.bias", "0.bias"], ["0.bias", "4.bias"])]
)
def test_parameters_are_named_or_their_modules_are(params, names):
    with prepared(make("relu"), [images(2)], params=params) as task:
        assert list(task.parameters) == names


@pytest.mark.parametrize("params", [["1"], ["0.weigh"], []])
def test_unknown_parameters_are_told(params):
    with pytest.raises(ValueError, match=r"params must name parameters or modules that have some, such as 0\.weight"):
        passes([images(2)], params=params)


def test_a_frozen_model_needs_names():
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        passes([images(2)], make("relu").requires_grad_(False))


def test_half_precision_is_refused():
    with pytest.raises(ValueError, match=r"all float32 or all float64, got torch\.bfloat16"):
        passes([images(2)], make("relu", dtype=torch.bfloat16))


def test_an_unknown_loss_is_told():
    with pytest.raises(ValueError, match=r"loss must be one of 'energy', 'ce_pred', 'ce', got 'hinge'"):
        passes([images(2)], loss="hinge")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_refused(bad):
    x = images(3)
    x[1] = bad
    with prepared(make("tanh"), [x]) as task, pytest.raises(ValueError, match=r"NaN or infinite for 1 of 3 inputs"):
        task.losses(next(task.each("")))


def test_a_model_without_a_row_of_logits_per_input_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 1)).double()
    with prepared(model, [images(3)]) as task, pytest.raises(ValueError, match=r"at least two logits.*got \(3, 1\)"):
        task.losses(next(task.each("")))


def test_a_batch_comes_apart_into_single_inputs():
    batch = split_batch(
        ({"x": torch.arange(3.0)[:, None], "scale": torch.ones(7), "flag": True}, torch.tensor([5, 6, 7]))
    )
    ones = list(single_inputs(batch))
    assert [one.labels.tolist() for one in ones] == [[5], [6], [7]]
    assert [one.kwargs["x"].tolist() for one in ones] == [[[0.0]], [[1.0]], [[2.0]]]
    assert all(one.rows == 1 and len(one.kwargs["scale"]) == 7 and one.kwargs["flag"] is True for one in ones)


def test_parameters_without_values_or_graphs_are_told():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with torch.inference_mode():
        made_there = nn.Linear(2, 2)
    for model in (lazy, made_there):
        with (
            pytest.raises(ValueError, match=r"parameters with values, .*weight is not\. Call a lazy module once"),
            prepared(model, [images(2)]),
        ):
            pass

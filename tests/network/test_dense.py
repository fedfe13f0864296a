"""`network.dense`: the oracle is the model itself, whose logits W h + b must give at every position."""

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.errors import UnsupportedHeadError
from flatfold.network.dense import RESIZES
from flatfold.network.heads import find_head, run
from flatfold.network.relations import relation_of
from tests.architectures import Net
from tests.refusals import refused

C, SIZE = 5, (17, 20)


def network(forward, **modules):
    torch.manual_seed(0)
    parts = {"body": nn.Conv2d(3, 8, 3, stride=2, padding=1), "head": nn.Conv2d(8, C, 1), "other": nn.Conv2d(8, C, 1)}
    return Net(forward, **parts, **modules).eval()


def images(n=4, size=SIZE, seed=1):
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(seed))


def hidden(m, x):
    return torch.relu(m.body(x))


def of_size(z, x, resize):
    return interpolate(z, x.shape[2:], **RESIZES[resize]) if RESIZES[resize] else z


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("layers", [("head",), ("head", "other")])
def test_the_logits_of_a_grid_are_found_as_they_are_or_interpolated(resize, layers):
    def forward(m, x):
        z = m.head(hidden(m, x))
        return {"out": of_size(z if len(layers) == 1 else z + m.other(hidden(m, x) ** 2), x, resize)}

    model = network(forward)
    found = find_head(model, images())
    assert (found.relation.kind, found.relation.layers, found.relation.resize) == ("dense", layers, resize)
    x = images(3, (24, 9), seed=2)
    with torch.no_grad():
        result, logits = run(model, found, split_batch(x)), model(x)["out"]
        h = hidden(model, x)
        rows = torch.cat([h, h**2], dim=1) if len(layers) == 2 else h
    assert_close(result.features, rows.movedim(1, -1).flatten(0, -2))
    assert_close(result.outputs, logits)
    grid = found.head(result.features).reshape(*result.grid, C).movedim(-1, 1)
    assert_close(of_size(grid, x, resize), logits, atol=1e-5, rtol=1e-5)
    settings = found.relation.settings()
    assert relation_of(settings) == found.relation
    with pytest.raises(ValueError, match="not valid"):
        relation_of(settings | {"resize": "cubic"})


def test_tokens_have_their_channels_last():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    assert find_head(model, torch.randn(1, 7, 4)).relation.kind == "dense"
    found = find_head(model, torch.randn(2, 7, 4))
    result = run(model, found, split_batch(x := torch.randn(5, 6, 4)))
    assert (str(found.relation), result.grid, result.size) == (
        "the logits are the output of '2' at every position",
        (5, 6),
        (6,),
    )
    assert_close(result.outputs, model(x))


def test_a_model_that_does_something_else_with_a_later_batch_is_refused():
    def forward(m, x):
        return of_size(m.head(hidden(m, x)), x, "bilinear" if len(x) < 4 else "nearest")

    model = network(forward)
    found = find_head(model, images(2))
    with refused("another interpolation", "not in a later one", UnsupportedHeadError):
        run(model, found, split_batch(images(4)))


def test_other_logits_at_every_position_are_refused():
    for forward in (
        lambda m, x: m.head(hidden(m, x)).softmax(dim=1),
        lambda m, x: m.head(hidden(m, x))[:, :, ::2, 1:],
        lambda m, x: 1.001 * m.head(hidden(m, x)),
    ):
        with refused("other logits", "every position|softmax", UnsupportedHeadError):
            find_head(network(forward), images())
    twins = network(lambda m, x: (m.head(hidden(m, x)), m.other(hidden(m, x))))
    with refused("two outputs", "several ways.*head", UnsupportedHeadError):
        find_head(twins, images())
    assert find_head(twins, images(), "other").relation.output == 1


def test_features_of_inputs_are_refused():
    with refused("extract", "Guard.fit", UnsupportedHeadError):
        ff.extract(network(lambda m, x: m.head(hidden(m, x))), [images()])

"""Made-up inputs, and what a model gives for them."""

import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.network.evidence import INPUTS, Evidence, InputSpec
from tests.architectures import Net

IDS, MASK = torch.randint(3, 50, (40, 7)), torch.ones(40, 7, dtype=torch.bool)


def test_made_up_inputs_have_the_shape_type_and_range_of_real_ones():
    image = 3 * torch.rand(5, 3, 9, 7) - 1
    for batch in (image, image.double(), torch.rand(6, 4), {"words": IDS, "mask": MASK, "rate": 0.5, "all": None}):
        spec, real = InputSpec.of(split_batch(batch)), split_batch(batch)
        made, again = spec.make(INPUTS), spec.make(INPUTS)
        for mine, twin, value in zip(
            *((*b.args, *map(b.kwargs.get, sorted(b.kwargs))) for b in (made, again, real)), strict=True
        ):
            if isinstance(value, torch.Tensor):
                assert (mine.dtype, mine.shape) == (value.dtype, (INPUTS, *value.shape[1:]))
                assert value.min() <= mine.min() <= mine.max() <= value.max()
                assert torch.equal(mine, twin)
            else:
                assert mine is value
    first = InputSpec.of(split_batch(image)).make(1).args[0][0, 0, 0, :2]
    assert first.tolist() == pytest.approx([0.64, 1.14], abs=0.05)  # 0.5488 and 0.7152 of the range, on every machine
    for batch in (
        {"x": image, "how": object()},
        {"x": image, "rate": float("nan")},
        image / 0,
        {"x": image, "y2": image[0]},
    ):
        assert InputSpec.of(split_batch(batch)) is None


def test_models_of_dicts_have_evidence_and_random_ones_have_none(tmp_path):
    torch.manual_seed(0)
    words = Net(
        lambda m, words, mask: m.head((m.table(words) * mask[..., None]).mean(1)),
        table=nn.Embedding(50, 8),
        head=nn.Linear(8, 3),
    )
    guard = ff.Guard.fit(words, [{"words": IDS, "mask": MASK}], method="ebo", fpr=0.1)
    assert guard.network.evidence.features.shape == (INPUTS, 8)
    guard.save(tmp_path / "guard.safetensors")
    loaded = ff.Guard.load(tmp_path / "guard.safetensors", words)
    loaded.use_runtime("torch")
    loaded.warm_up()
    drawn = Net(lambda m, x: m.head(x + torch.rand_like(x)), head=nn.Linear(8, 3))
    assert ff.Guard.fit(drawn, [torch.randn(60, 8)], method="ebo", fpr=0.1).network.evidence is None
    picky = Net(lambda m, x: m.head({len(x): x}[60]), head=nn.Linear(8, 3))  # made for batches of 60
    assert ff.Guard.fit(picky, [torch.randn(60, 8)], method="ebo", fpr=0.1).network.evidence is None


def test_evidence_holds_in_half_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    guard = ff.Guard.fit(
        model, [torch.randn(60, 16)], method="ebo", fpr=0.1, execution=ff.Execution(dtype=torch.bfloat16)
    )
    assert isinstance(guard.network.evidence, Evidence)
    assert guard.network.evidence.difference(model, guard.network.found, torch.bfloat16) == 0
    assert guard.network.evidence.difference(model, guard.network.found, None) < 0.05
    model[1] = nn.GELU()
    assert guard.network.evidence.difference(model, guard.network.found, torch.bfloat16) > 0.05
    model[1] = Net(lambda m, x: x.log())  # not a number for negative values
    assert guard.network.evidence.difference(model, guard.network.found, torch.bfloat16) == 1

"""`models.features`: a bank run through its own head comes out as it went in."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flatfold import FeatureBank
from flatfold.core.errors import DamagedBank
from flatfold.models.extract import extract
from flatfold.models.features import FeatureRows, linear_head
from flatfold.models.store import save_bank

DTYPES = [torch.float32, torch.float64]


def make_bank(n=11, d=5, dtype=torch.float32, labels=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    return FeatureBank(features, torch.randint(3, (n,), generator=g) if labels else None)


def saved(folder, bank):
    save_bank(bank, folder)
    return folder


def save_head(path, dtype=torch.float32, bias=True, c=3, d=5):
    g = torch.Generator().manual_seed(1)
    tensors = {"weight": torch.randn(c, d, generator=g, dtype=torch.float64).to(dtype)}
    if bias:
        tensors["bias"] = torch.randn(c, generator=g, dtype=torch.float64).to(dtype)
    save_file(tensors, path)
    return tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("labels", [True, False])
def test_extracting_returns_exactly_the_bank_and_the_head(tmp_path, dtype, bias, labels):
    bank, tensors = make_bank(dtype=dtype), save_head(tmp_path / "h.safetensors", dtype, bias)
    rows = FeatureRows(saved(tmp_path / "bank", bank), batch_size=4, labels=labels)
    got, head = extract(linear_head(tmp_path / "h.safetensors"), rows)
    assert got.features.dtype == head.weight.dtype == dtype
    assert torch.equal(got.features, bank.features)
    assert torch.equal(got.labels, bank.labels) if labels else got.labels is None
    assert torch.equal(head.weight, tensors["weight"])
    assert torch.equal(head.bias, tensors["bias"]) if bias else head.bias is None


def test_a_bank_of_several_shards_can_be_run_again(tmp_path):
    bank = make_bank()
    save_head(tmp_path / "h.safetensors")
    layer = linear_head(tmp_path / "h.safetensors")
    once, _ = extract(layer, FeatureRows(saved(tmp_path / "a", bank)), out=tmp_path / "b", shard_rows=3)
    twice, _ = extract(layer, FeatureRows(tmp_path / "b"), out=tmp_path / "c", shard_rows=2)
    assert torch.equal(twice.features, bank.features)
    assert torch.equal(twice.labels, once.labels)


def test_batches_hold_the_rows_in_their_order(tmp_path):
    bank = make_bank()
    rows = FeatureRows(str(saved(tmp_path, bank)), batch_size=4)
    assert (rows.rows, len(rows), [len(x) for x, _ in rows]) == (11, 3, [4, 4, 3])
    x, y = rows.read(range(3, 6))
    assert torch.equal(x, bank.features[3:6])
    assert torch.equal(y, bank.labels[3:6])
    assert torch.equal(rows.labels, bank.labels)
    plain = FeatureRows(tmp_path, labels=False)
    assert plain.labels is None
    assert torch.equal(plain.read(range(3, 6)), bank.features[3:6])


def test_labels_are_not_made_up(tmp_path):
    saved(tmp_path, make_bank(labels=False))
    with pytest.raises(ValueError, match=r"labels are wanted, but the bank in .* has none\. Pass labels=False"):
        FeatureRows(tmp_path)
    assert [tuple(x.shape) for x in FeatureRows(tmp_path, labels=False)] == [(11, 5)]


def test_a_damaged_bank_is_refused_when_it_is_opened(tmp_path):
    saved(tmp_path, make_bank())
    file = tmp_path / "features-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedBank, match="is not as it was written"):
        FeatureRows(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no bank at"):
        FeatureRows(tmp_path / "none")


def test_a_batch_size_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size must be a positive whole number, got 0"):
        FeatureRows(saved(tmp_path, make_bank()), batch_size=0)


def test_the_fingerprint_changes_with_features_labels_and_their_use(tmp_path):
    bank = make_bank()
    moved = FeatureBank(bank.features, bank.labels.roll(1))
    others = [bank, moved, make_bank(seed=1), make_bank(n=10), make_bank(dtype=torch.float64)]
    sources = [FeatureRows(saved(tmp_path / str(i), each)) for i, each in enumerate(others)]
    sources.append(FeatureRows(tmp_path / "0", labels=False))
    assert len({source.fingerprint for source in sources}) == len(sources)
    # The same shards in another order, and another second shard.
    orders = {"straight": [0, 1, 2, 3, 4, 5], "swapped": [3, 4, 5, 0, 1, 2], "other": [0, 1, 2, 6, 7, 8]}
    shards = [extracted(tmp_path / name, bank[torch.tensor(rows)]) for name, rows in orders.items()]
    assert len({source.fingerprint for source in shards}) == 3


def extracted(folder, bank):
    """Return a bank in shards of three rows."""
    layer = nn.Linear(5, 3)
    extract(layer, [(bank.features, bank.labels)], out=folder, key="rows", shard_rows=3)
    return FeatureRows(folder)


def test_the_fingerprint_depends_on_nothing_else(tmp_path):
    one = FeatureRows(saved(tmp_path / "one", make_bank()), batch_size=2)
    two = FeatureRows(saved(tmp_path / "two", make_bank()), batch_size=3)
    assert one.fingerprint == two.fingerprint
    assert len(one.fingerprint) == 64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_head_computes_what_its_tensors_say(tmp_path, dtype):
    tensors = save_head(tmp_path / "h.safetensors", dtype)
    x = make_bank(dtype=dtype).features
    layer = linear_head(str(tmp_path / "h.safetensors"))
    expected = x.double() @ tensors["weight"].double().T + tensors["bias"].double()
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(layer(x).double(), expected, rtol=rtol, atol=rtol)
    assert (layer.in_features, layer.out_features, layer.training) == (5, 3, False)
    assert not any(value.is_meta for value in layer.state_dict().values())


def test_reading_a_head_draws_no_random_numbers(tmp_path):
    save_head(tmp_path / "h.safetensors")
    before = torch.get_rng_state()
    linear_head(tmp_path / "h.safetensors")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, r"it holds none\. Save the state dict of the last layer alone"),
        ({"bias": torch.zeros(3)}, r"must hold the tensors 'weight' and, if there is one, 'bias'.* it holds 'bias'\. "),
        ({"weight": torch.ones(3, 2), "fc.weight": torch.ones(3, 2)}, r"it holds 'fc\.weight', 'weight'\. Save"),
        ({name: torch.ones(3, 2) for name in "abcde"}, r"it holds 'a', 'b', 'c' and 2 more\. Save"),
        ({"weight": torch.ones(3)}, "the head's weight must have two dimensions"),
        ({"weight": torch.ones(1, 3)}, "a head needs at least two classes"),
        ({"weight": torch.full((3, 2), float("nan"))}, "the head's weight must be finite"),
        ({"weight": torch.ones(3, 2), "bias": torch.zeros(2)}, r"the head's bias must have shape \(3,\)"),
        ({"weight": torch.ones(3, 2), "bias": torch.zeros(3).double()}, r"and type torch\.float32 like its weight"),
    ],
)
def test_tensors_that_make_no_head_are_refused_with_the_name_of_the_file(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "h.safetensors")
    with pytest.raises(ValueError, match=rf"h\.safetensors:? .*{message}"):
        linear_head(tmp_path / "h.safetensors")


def test_a_head_in_another_type_is_refused(tmp_path):
    save_file({"weight": torch.ones(3, 2).half()}, tmp_path / "h.safetensors")
    with pytest.raises(TypeError, match=r"h\.safetensors: the head's weight must be float32 or float64, got torch"):
        linear_head(tmp_path / "h.safetensors")


def test_a_file_that_is_no_head_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\. Check the path"):
        linear_head(tmp_path / "none")
    (tmp_path / "h").write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"h must be a safetensors file, but cannot be read: .*\. Write it again"):
        linear_head(tmp_path / "h")


def test_picked_rows_are_a_source_of_their_own(tmp_path):
    bank = FeatureBank(torch.randn(10, 4), torch.arange(10) % 3)
    source = FeatureRows(saved(tmp_path, bank), batch_size=2)
    rows = np.array([7, 1, 4])
    some = source.picked(rows)
    got = list(some)
    assert torch.equal(torch.cat([x for x, _ in got]), bank.features[rows])
    assert torch.cat([y for _, y in got]).tolist() == [1, 1, 1]
    assert (some.rows, source.rows, len(source.labels)) == (3, 10, 10)
    assert len({source.fingerprint, some.fingerprint, source.picked(rows[:2]).fingerprint}) == 3
    assert torch.equal(some.picked(np.array([2, 0])).read(range(2))[0], bank.features[[4, 7]])
    with pytest.raises(ValueError, match="picked rows must lie between 0 and 9"):
        source.picked(np.array([10]))

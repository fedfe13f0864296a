"""Fingerprints: the hash of weights changes with every part of them, that of files with some of their bytes."""

import hashlib
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flatfold.data.fingerprint import evenly_spaced, hash_samples
from flatfold.network import fingerprint
from flatfold.network.fingerprint import weights_hash
from tests.architectures import LowRank


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def test_every_change_of_the_weights_changes_the_hash():
    def one_bit(model):
        model[0].weight.data[0, 0] = torch.nextafter(model[0].weight[0, 0], torch.tensor(9.0))

    def in_place(model):
        with torch.no_grad():
            model[0].weight.copy_(model[0].weight.flip(1))

    def swap_rows(model):
        model[0].weight.data[:] = model[0].weight.data.flip(0)

    changes = {
        "one bit": one_bit, "swapped rows": swap_rows, "in place": in_place,
        "loaded": lambda model: model.load_state_dict(make_model(1).state_dict()),
        "replaced": lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones(3))),
        "other memory": lambda model: setattr(model[0].bias, "data", model[0].bias.data.flip(0)),
        "statistics": lambda model: model[1].running_mean.add_(1),
        "counter": lambda model: model[1].num_batches_tracked.add_(1),
        "another name": lambda model: model.add_module("2", model[0]), "float64": nn.Module.double,
        "bfloat16": nn.Module.bfloat16,
    }  # fmt: skip
    before = weights_hash(make_model())
    for case, change in changes.items():
        model = make_model()
        assert weights_hash(model) == before
        change(model)
        assert weights_hash(model) != before, case
    wide, tall = nn.ParameterList([torch.zeros(2, 3)]), nn.ParameterList([torch.zeros(3, 2)])
    assert weights_hash(wide) != weights_hash(tall)
    layer = nn.Linear(2, 2)
    assert weights_hash(nn.ModuleDict({"a": layer})) != weights_hash(nn.ModuleDict({"b": layer}))


def test_mode_gradients_memory_layout_and_compilation_do_not_matter():
    model = make_model()
    before = weights_hash(model)
    model.eval().requires_grad_(False)
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    assert weights_hash(model) == before == weights_hash(make_model())
    lora = LowRank(3, 3)  # whose weights differ in training mode
    for value in lora.parameters():
        value.data.round_()
    assert weights_hash(lora) == weights_hash(lora.eval())
    compiled = torch.compile(model, backend="eager")
    assert weights_hash(compiled) == before
    assert weights_hash(nn.Sequential(compiled)) == weights_hash(nn.Sequential(model))


def test_unchanged_weights_are_hashed_once_and_those_without_a_version_each_time(monkeypatch):
    hashed, sha256 = [], fingerprint._sha256
    monkeypatch.setattr(fingerprint, "_sha256", lambda tensors: hashed.append(tensors) or sha256(tensors))
    model = make_model()
    first = weights_hash(model)
    assert [weights_hash(model), weights_hash(model.eval())] == [first] * 2
    assert len(hashed) == 1
    with torch.inference_mode():
        frozen = make_model()
        assert weights_hash(frozen) == first
        frozen[0].weight += 1
        assert weights_hash(frozen) != first


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated")
def test_quantised_weights_count_also_where_a_layer_packs_them():
    class Packed(nn.Module):
        def get_extra_state(self):
            return self.weight, object()  # private state does not count

    def hashed(seed, per_channel):
        model, weight = Packed(), torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
        model.weight = torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)
        if per_channel:
            model.weight = torch.quantize_per_channel(weight, torch.ones(3), torch.zeros(3), 0, torch.qint8)
        return weights_hash(model)

    for per_channel in (False, True):
        assert hashed(0, per_channel) == hashed(0, per_channel) != hashed(1, per_channel)


def write(path, content):
    path.write_bytes(content)
    return path


def fed(files):
    digest = hashlib.sha256()
    hash_samples(digest, files)
    return digest.hexdigest()


def test_the_beginning_and_the_end_of_twenty_files_count(tmp_path):
    for size, place in [(10, 5), (2**16, 2**16 - 1), (2**16 + 9, 2**16 + 3), (10**6, 10**6 - 1)]:
        before = fed([write(tmp_path / "x", bytes(size))])
        for where in (0, place):
            content = bytearray(size)
            content[where] = 1
            assert fed([write(tmp_path / "x", content)]) != before, (size, where)
    files = [write(tmp_path / f"{i:03d}", bytes(3 * 2**16)) for i in range(100)]
    before = fed(files)
    write(files[0], bytes(2**16) + b"x" * 2**16 + bytes(2**16))
    assert fed(files) == before
    for file in set(files) - set(evenly_spaced(files)):
        file.unlink()
    assert fed(files) == before
    files[0].unlink()
    with pytest.raises(OSError, match="000"):
        fed(files)


@given(st.integers(1, 5000))
def test_the_chosen_files_are_spread_from_the_first_to_the_last(n):
    chosen = evenly_spaced(range(n))
    assert len(chosen) == len(set(chosen)) == min(n, 20)
    assert (chosen[0], chosen[-1]) == (0, n - 1)
    steps = {after - before for before, after in pairwise(chosen)}
    assert not steps or max(steps) - min(steps) <= 1

"""What is stored is only used for the network that gave it: the same weights are not enough."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from flatfold.models.extract import extract
from flatfold.models.images import ArrayImages, FolderImages
from flatfold.models.resumed import check_features, check_scores
from flatfold.models.rows import score_rows
from flatfold.models.transform import Transform
from flatfold.models.writer import Stored

ROWS, SHARD = 20, 6
OTHER = (
    r"holds features of another network: its weights are the same, but not what it does with them\. .* Choose another"
)
OTHER_SCORES = OTHER.replace("features", "scores")


def network(activation=None, dtype=torch.float32):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(12, 16), activation or nn.ReLU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).to(dtype)


def images(batch_size=4):
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 2, 2, 3), dtype=np.uint8)
    return ArrayImages(pixels, np.arange(ROWS) % 3, Transform(), batch_size)


def batches(size=4):
    x, _ = images(ROWS).read(range(ROWS))
    return x.split(size)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.GELU(), nn.LeakyReLU(0.1)], ids=str)
def test_an_exchanged_activation_is_noticed_in_a_finished_bank(tmp_path, activation):
    extract(network(), images(), out=tmp_path, shard_rows=SHARD)
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match=OTHER):
        extract(network(activation), images(), out=tmp_path, shard_rows=SHARD)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("size", [1, 4, 7, 20])
def test_it_is_noticed_with_any_loader(tmp_path, size):
    extract(network(), batches(), out=tmp_path, key="k", shard_rows=SHARD)
    with pytest.raises(ValueError, match=OTHER):
        extract(network(nn.Tanh()), batches(size), out=tmp_path, key="k", shard_rows=SHARD)


def test_it_is_noticed_before_an_unfinished_bank_is_continued(tmp_path):
    extract(network(), images(), out=tmp_path, shard_rows=SHARD)
    (tmp_path / "features-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=OTHER):
        extract(network(nn.Tanh()), images(), out=tmp_path, shard_rows=SHARD)
    assert not (tmp_path / "features-00002.safetensors").exists()


def test_it_is_noticed_when_the_first_shard_is_the_damaged_one(tmp_path):
    extract(network(), images(), out=tmp_path, shard_rows=SHARD)
    (tmp_path / "features-00000.safetensors").unlink()
    with pytest.raises(ValueError, match=OTHER):
        extract(network(nn.Tanh()), images(), out=tmp_path, shard_rows=SHARD)


def test_other_inputs_under_the_same_key_are_noticed_too(tmp_path):
    extract(network(), batches(), out=tmp_path, key="k")
    with pytest.raises(ValueError, match="other inputs under the same key"):
        extract(network(), [x + 1 for x in batches()], out=tmp_path, key="k")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_same_network_with_another_batch_size_is_accepted(tmp_path, dtype):
    def cast(size):
        return [x.to(dtype) for x in batches(size)]

    first, _ = extract(network(dtype=dtype), cast(20), out=tmp_path, key="k", shard_rows=SHARD)
    (tmp_path / "features-00003.safetensors").unlink()
    again, _ = extract(network(dtype=dtype), cast(3), out=tmp_path, key="k", shard_rows=SHARD)
    torch.testing.assert_close(first.features, again.features, rtol=2e-2, atol=2e-2)


def test_rounding_is_allowed_for_and_a_change_is_not(tmp_path):
    there = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    check_features(tmp_path, there, there * 1.009, torch.float32)
    check_features(tmp_path, there, there * 1.04, torch.bfloat16)  # 8 bits
    for factor, dtype in [
        (1.02, torch.float32),
        (0.98, torch.float64),
        (1.1, torch.bfloat16),
        (torch.nan, torch.float32),
    ]:
        with pytest.raises(ValueError, match=OTHER):
            check_features(tmp_path, there, there * factor, dtype)
    with pytest.raises(ValueError, match=OTHER):  # one row of three
        check_features(tmp_path, there, torch.cat([there[:2], there[2:] * 1.1]), torch.float32)


def test_features_that_are_all_zero_agree_with_themselves_only(tmp_path):
    there = torch.zeros(2, 4)
    check_features(tmp_path, there, there, torch.float32)
    with pytest.raises(ValueError, match=r"For one input they lie 2 apart, at a size of 2\."):
        check_features(tmp_path, there, there + 1, torch.float32)


def test_the_features_of_rows_behind_a_gap_are_compared_with_their_own(tmp_path):
    for row in range(8):
        pixels = np.random.default_rng(row).integers(0, 256, (2, 2, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
    for row in (0, 1, 2, 5):
        (tmp_path / f"{row}.png").write_bytes(b"no image")
    out = tmp_path / "bank"
    for shard_rows in (2, 3, 8):  # a whole shard, the beginning of one, and both inside of one
        shutil.rmtree(out, ignore_errors=True)
        how = {"out": out, "shard_rows": shard_rows, "unreadable": 0.5}
        first, _ = extract(network(), FolderImages(tmp_path, Transform(), 4, labels=False), **how)
        again, _ = extract(network(), FolderImages(tmp_path, Transform(), 4, labels=False), **how)
        assert torch.equal(first.features, again.features)
        with pytest.raises(ValueError, match=OTHER):
            extract(network(nn.Tanh()), FolderImages(tmp_path, Transform(), 4, labels=False), **how)


def test_stored_rows_are_found_among_others_in_their_order():
    stored = Stored([4, 5, 7], torch.tensor([[4.0], [5.0], [7.0]]))
    places, features = stored.among([7, 6, 3, 5])
    assert places == [0, 3]
    assert features.flatten().tolist() == [7, 5]
    assert stored.among([1])[0] == []


def scores(model, out, source=None):
    return score_rows(lambda x: -model(x).logsumexp(1), model, source or images(), out, {"method": "energy"})


def test_scores_of_another_network_are_refused(tmp_path):
    scores(network(), tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match=OTHER_SCORES):
        scores(network(nn.Tanh()), tmp_path)
    assert files_of(tmp_path) == before


def test_scores_of_the_same_network_are_read_and_only_a_few_inputs_run(tmp_path):
    first, seen = scores(network(), tmp_path), []
    model = network()
    model.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    assert torch.equal(scores(model, tmp_path, images(batch_size=7)), first)
    assert seen == [2]


def test_scores_are_measured_by_how_far_they_lie_apart(tmp_path):
    """ODIN's differ in the fourth digit: relative to their size, any two networks would agree."""
    there = 0.1 + torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) * 1e-4
    spread = float(there.std())
    check_scores(tmp_path, there, there + 1e-7, spread)
    with pytest.raises(ValueError, match=OTHER_SCORES):
        check_scores(tmp_path, there, there + 1e-5, spread)
    with pytest.raises(ValueError, match=OTHER_SCORES):
        check_scores(tmp_path, there[:2], there[:2] - 1e-5, spread)


def test_scores_without_any_spread_are_allowed_to_be_rounded(tmp_path):
    check_scores(tmp_path, torch.tensor([[8.0]]), torch.tensor([[8.00005]]), 0.0)
    with pytest.raises(ValueError, match=OTHER_SCORES):
        check_scores(tmp_path, torch.tensor([[8.0]]), torch.tensor([[8.001]]), 0.0)


def test_a_single_score_can_be_stored_and_read(tmp_path):
    one = ArrayImages(np.zeros((1, 2, 2, 3), np.uint8), None, Transform())
    assert torch.equal(scores(network(), tmp_path, one), scores(network(), tmp_path, one))

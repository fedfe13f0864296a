"""The suite file in ``examples`` on real images."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from flatfold.evaluate.suite_file import read_suites

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10.toml"


@pytest.fixture(scope="module")
def suites(data):
    return read_suites(EXAMPLE, batch_size=100)


def test_both_networks_are_judged_on_all_images(suites):
    assert [suite.network for suite in suites] == ["resnet20", "resnet56"]
    for suite in suites:
        assert (suite.train.rows, suite.val.rows, suite.test.rows) == (5000, 1000, 9000)
        assert {ood.name: ood.images.rows for ood in suite.ood} == {"textures": 1200, "svhn": 4000, "mnist": 10_000}
        assert {ood.group for ood in suite.ood} == {"far"}
        assert suite.val.labels.bincount().tolist() == [100] * 10
        assert suite.test.labels.bincount().tolist() == [900] * 10


def test_all_images_have_the_size_that_the_network_was_trained_on(suites):
    suite = suites[0]
    for source in (suite.train, suite.val, suite.test, *(ood.images for ood in suite.ood)):
        batch = next(iter(source))
        assert (batch if isinstance(batch, torch.Tensor) else batch[0]).shape == (100, 3, 32, 32)


def test_the_network_knows_its_images(suites):
    with torch.no_grad():
        hits = [suites[0].model(x).argmax(dim=-1) == y for x, y in islice(suites[0].test, 2)]
    assert torch.cat(hits).double().mean() > 0.85

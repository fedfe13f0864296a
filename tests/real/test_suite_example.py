"""The suite file in ``examples`` on real images."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from flatfold.evaluate.runner import run
from flatfold.evaluate.suites.toml_file import SuiteFile

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10.toml"


@pytest.fixture(scope="module")
def suites(data):
    return SuiteFile(EXAMPLE, batch_size=100).suites()


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


def test_methods_that_see_images_work_on_real_ones(data, monkeypatch, tmp_path):
    """A few hundred images are enough to tell digits from photographs."""
    monkeypatch.setenv("FLATFOLD_DATA", str(data))
    text = EXAMPLE.read_text().replace('rest_of = "val"', 'rest_of = "val"\nfirst = 300')
    for name in ("svhn_test_4k", "mnist_test", "textures_dtd10_32"):
        text = text.replace(f'{name}.npz"', f'{name}.npz"\nfirst = 200')
    (tmp_path / "few.toml").write_text(text)
    (tmp_path / "cifar_resnet.py").write_text(EXAMPLE.with_name("cifar_resnet.py").read_text())
    suite = next(s for s in SuiteFile(tmp_path / "few.toml").suites() if s.network == "resnet20")
    results = run(suite, ["odin", "mdsens", "mdsens:layers=stages:epsilon=0", "mds:alpha=1.0"], tmp_path / "out")
    assert results.refused == {}
    assert results.methods[0].hyper["std"] == (0.229, 0.224, 0.225)
    found = {(row.method, row.dataset): row.auroc for row in results.rows}
    assert found["odin", "mnist"] > 0.97
    assert found["mdsens", "mnist"] > 0.94
    assert found["mdsens:layers=stages:epsilon=0", "mnist"] > 0.98
    assert found["mds:alpha=1.0", "svhn"] > 0.96  # Mahalanobis++

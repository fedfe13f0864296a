"""`flatfold.benchmark`: the runner's results for a model and data in memory, as tables and figures."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flatfold as ff
from flatfold.evaluate.results import METRICS

METHODS = ["msp", "knn:k=5", "odin"]


def clusters(n, seed, shift=0.0):
    labels = torch.arange(n) % 3
    return 4 * torch.eye(3)[labels] + shift + torch.randn(n, 3, generator=torch.manual_seed(seed)), labels


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = clusters(300, 0)
    optimiser = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    return network


@pytest.fixture(scope="module")
def data():
    return {"id_test": clusters(90, 1), "ood": {"shift": clusters(60, 2, 3.0)[0], "noise": 9 * torch.randn(50, 3)}}


def loader(x, y=None):
    """A loader of inputs with labels; those of OOD data are no classes."""
    return DataLoader(TensorDataset(x, -torch.ones(len(x), dtype=torch.int64) if y is None else y), 16)


def test_arrays_and_loaders_give_the_figures_of_the_public_functions(model, data, tmp_path):
    grouped = {"near": {"shift": data["ood"]["shift"]}, "far": {"noise": data["ood"]["noise"]}}
    arrays = ff.benchmark(model, data["id_test"], grouped, fit=clusters(300, 0), methods=METHODS, out=tmp_path)
    lazy = {name: loader(x) for name, x in data["ood"].items()}
    loaders = ff.benchmark(model, loader(*data["id_test"]), lazy, fit=clusters(300, 0), methods=METHODS, bootstrap=0)
    bank, head = ff.extract(model, clusters(300, 0))
    knn = ff.create("knn", k=5).fit(bank, head)
    known, noise = (knn(ff.extract(model, x)[0].features) for x in (data["id_test"][0], data["ood"]["noise"]))
    for results in (arrays, loaders):
        assert results.cells["knn:k=5", "noise"].auroc == pytest.approx(ff.auroc(known, noise), abs=1e-6)
        assert list(results.left_out) == ["odin"]
        assert results.suite["accuracy"] > 0.8
    assert set(arrays.rows[0].certainty.intervals) == set(METRICS)
    assert [ood["group"] for ood in arrays.suite["ood"]] == ["near", "far"]
    assert ff.load_results(tmp_path).to_latex() == arrays.to_latex()


def test_without_data_to_learn_from_the_other_methods_are_compared(model, data):
    methods = ["msp", "knn:k=5", "fourfold", "react@id", "odin"]
    results = ff.benchmark(model, **data, methods=methods, bootstrap=0)
    assert [run.method for run in results.methods] == ["msp"]
    assert "fit=" in results.left_out["knn:k=5"]
    assert "fit=" in results.left_out["fourfold"]
    assert results.left_out.keys() == set(methods[1:])
    assert (results.suite["n_train"], results.suite["n_val"]) == (0, 0)
    fitted = ff.benchmark(model, **data, fit=clusters(300, 0), methods="msp", bootstrap=0)
    assert results.cells["msp", "noise"].auroc == fitted.cells["msp", "noise"].auroc
    with_val = ff.benchmark(model, **data, val=clusters(300, 0), methods="fourfold,knn", bootstrap=0)
    assert [run.method for run in with_val.methods] == ["fourfold"]
    with pytest.raises(ValueError, match=r"knn: .*fit="):
        ff.benchmark(model, **data, methods="knn")


def test_results_become_a_data_frame_and_figures(model, data, monkeypatch):
    results = ff.benchmark(model, **data, fit=clusters(300, 0), methods=METHODS, bootstrap=0)
    for figure, panels in ((results.plot_roc(["msp"]), 2), (results.plot_scores(), 2)):
        assert sum(axes.get_visible() for axes in figure.axes) == panels
    assert len(results.plot_roc(["msp"]).axes[0].lines) == 1
    with pytest.raises(ValueError, match="mps"):
        results.plot_scores(["mps"])
    pandas = pytest.importorskip("pandas")
    frame = results.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.pivot(index="method", columns="dataset", values="auroc").loc["msp", "noise"] == results.rows[1].auroc
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        results.to_pandas()


def test_mistakes_name_the_argument(model, data):
    test, ood, fit = data["id_test"], data["ood"], clusters(300, 0)
    cases = [
        ({"ood": {}}, "ood must be a dict"), ({"ood": [test]}, "ood must be a dict"),
        ({"ood": {"near": test[0]}}, "'near'"),
        ({"ood": {"near": {"q": test[0]}, "far": {}}}, "'far'"), ({"ood": {"near": {"q": test[0]}, "r": 0}}, "'r'"),
        ({"ood": {"val": test[0]}}, "tuning only"),
        ({"id_test": test[0]}, "id_test needs labels"), ({"fit": fit[0]}, "fit needs labels"),
        ({"fit": test}, "same images"), ({"ood": {"test": fit[0]}}, "cannot be called"), ({"methods": ["mps"]}, "msp"),
    ]  # fmt: skip
    for wrong, message in cases:
        with pytest.raises((TypeError, ValueError), match=message):
            ff.benchmark(**{"model": model, "id_test": test, "ood": ood, "fit": fit, "methods": ["msp"], **wrong})

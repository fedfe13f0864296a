"""Memory of `fit`: chunks of the bank, never a copy of it, in float64 or otherwise."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import flatfold as ff
from flatfold.core.class_statistics import class_moments

ROWS, WIDTH, CLASSES = 6000, 64, 20
METHODS = ["mds", "rmds", "vim", "openmax", "she", "nci", "fdbd", "dice", "pnml", "neco", "optfs", "klm"]
METHODS += ["fourfold", "direction", "length", "nnguide", "knn"]


class LargestTensor(TorchDispatchMode):
    """Record the bytes of the largest tensor that an operation returns, except views of the bank."""

    def __init__(self, bank):
        super().__init__()
        self.known, self.size = bank.features.untyped_storage().data_ptr(), bank.features.nbytes
        self.bytes, self._large = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() != self.known:
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
                if 4 * tensor.untyped_storage().nbytes() >= self.size:
                    self._large.add(tensor.untyped_storage().data_ptr())
        return found

    @property
    def large(self):
        """The number of places in memory that have held a quarter of the bank or more."""
        return len(self._large)


def make_bank(rows=ROWS, width=WIDTH, classes=CLASSES):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, width, generator=g)
    labels = torch.randint(classes, (rows,), generator=g)
    features = (weight[labels] + 2 * torch.randn(rows, width, generator=g)).relu_()
    return ff.FeatureBank(features, labels), ff.Head(weight, torch.zeros(classes))


@pytest.mark.parametrize("method", METHODS)
def test_fit_never_copies_the_bank_nor_a_large_part_of_it(method, monkeypatch):
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 100 * WIDTH)
    monkeypatch.setattr("flatfold.core.shaping.ENTRIES_SORTED", 1000)
    monkeypatch.setattr("flatfold.core.class_statistics.LOGITS_AT_ONCE", 1000)
    bank, head = make_bank()
    options = {"nnguide": {"k": 10, "batch_size": 10}}.get(method, {})
    with LargestTensor(bank) as largest:
        ff.create(method, **options).fit(bank, head)
    assert 0 < largest.bytes <= 4 * ROWS * WIDTH / 4


@pytest.mark.parametrize(
    ("method", "copies"), [("mds:alpha=1", 1), ("knn:alpha=0.5", 1), ("react", 0), ("vra", 0), ("ebo-c", 0)]
)
def test_a_shaped_method_holds_at_most_one_shaped_copy_of_the_bank(method, copies, monkeypatch):
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 100 * WIDTH)
    monkeypatch.setattr("flatfold.core.shaping.ENTRIES_SORTED", 1000)
    bank, head = make_bank()
    with LargestTensor(bank) as largest:
        ff.create(method).fit(bank, head)
    assert largest.large == copies


@pytest.mark.parametrize("method", ["mds", "rmds", "vim", "openmax", "she", "nci", "fdbd", "dice", "pnml", "neco"])
def test_the_features_of_a_large_shaped_bank_are_computed_in_chunks(method, monkeypatch):
    bank, head = make_bank()
    expected = ff.create(method, alpha=0.5).fit(bank, head)(bank.features[:50])
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 100 * WIDTH)
    monkeypatch.setattr("flatfold.core.bank.SHAPED_AT_ONCE", 0)
    with LargestTensor(bank) as largest:
        detector = ff.create(method, alpha=0.5).fit(bank, head)
    assert largest.large == 0
    torch.testing.assert_close(detector(bank.features[:50]), expected, rtol=1e-4, atol=1e-5)


def test_methods_on_a_bank_that_shares_its_moments_compute_them_once(monkeypatch):
    bank, head = make_bank()
    shared, calls = bank.sharing_moments(), []
    count = lambda *arguments: calls.append(arguments) or class_moments(*arguments)  # noqa: E731
    for order in (["vim", "mds", "neco", "rmds"], ["rmds", "neco"]):
        found = [ff.create(name).fit(shared, head) for name in order]
        for name, detector in zip(order, found, strict=True):
            alone = ff.create(name).fit(bank, head)
            torch.testing.assert_close(detector(bank.features[:50]), alone(bank.features[:50]))
    monkeypatch.setattr("flatfold.core.class_statistics.class_moments", count)
    saved = shared.seconds_saved
    ff.create("mds").fit(shared, head)
    assert calls == []
    assert shared.seconds_saved > saved > 0 == bank.seconds_saved
    ff.create("mds").fit(bank.sharing_moments(), head)
    assert len(calls) == 1
    half = shared[:3000]  # another bank, with moments of its own
    torch.testing.assert_close(half.moments(by_class=True).mean, half.features.double().mean(0))


@pytest.mark.slow
def test_the_memory_of_a_process_that_fits_a_mapped_bank_is_a_fraction_of_it(tmp_path):
    bank, head = make_bank(100_000, 1024, 10)  # 400 MB
    ff.save_bank(bank, tmp_path)
    torch.save(head.weight, tmp_path / "weight.pt")
    script = (
        "import sys, torch, flatfold as ff\n"
        "from resource import RUSAGE_SELF, getrusage\n"
        "from benchmarks.growth import _private_peak\n"
        "bank = ff.load_bank(sys.argv[1], verify=False)\n"
        "head = ff.Head(torch.load(sys.argv[1] + '/weight.pt'))\n"
        "with _private_peak() as peak:\n"
        "    ff.create(sys.argv[2]).fit(bank, head)\n"
        "    print(peak())\n"
    )
    for method in ("mds", "openmax", "vim"):
        command = [sys.executable, "-c", script, str(tmp_path), method]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        assert float(done.stdout) < 200, method  # megabytes

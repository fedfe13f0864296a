"""KNN against faiss's flat index, and what a large bank takes of the memory."""

import subprocess
import sys

import numpy as np
import torch

import flatfold as ff

from .ratio import report, time_ratio

# Rows and width of the bank, queries and k.
SIZES = (
    (50_000, 512, 1000, 50),
    (50_000, 512, 1000, 1),
    (50_000, 512, 64, 50),
    (50_000, 512, 1, 50),
    (50_000, 64, 1000, 50),
)


def run() -> list[bool]:
    """Measure the time of a search, and the memory of a fit and a search."""
    return [*speed(), memory(None, 0), memory("float16", 2)]


def speed() -> list[bool]:
    """Search for neighbours in turn with faiss, for several sizes."""
    try:
        import faiss
    except ModuleNotFoundError:
        print("skip  KNN against faiss, which is not here")
        return []
    g = torch.Generator().manual_seed(0)
    passed = []
    for rows, width, n, k in SIZES:
        bank, queries = (torch.randn(count, width, generator=g).relu() for count in (rows, n))
        knn = ff.detectors.Knn(k).fit(ff.FeatureBank(bank), ff.Head(torch.randn(10, width, generator=g)))
        index = faiss.IndexFlatL2(width)
        index.add(unit(bank))
        reference = index.search(unit(queries), k)[0][:, -1]
        assert np.abs(knn(queries).numpy() - reference).max() < 1e-5

        def search(index: object = index, queries: torch.Tensor = queries, k: int = k) -> None:
            index.search(unit(queries), k)

        ratio = 1 / time_ratio(lambda knn=knn, queries=queries: knn(queries), search, rounds=15)
        what = f"KNN against faiss {faiss.__version__}'s flat index, {rows:,} x {width}, {n:,} queries, k={k}"
        passed.append(report(what, ratio, "times its time", 1, at_least=False))
    return passed


def unit(rows: torch.Tensor) -> np.ndarray:
    """Return rows of unit length as faiss wants them."""
    return torch.nn.functional.normalize(rows).numpy()


def memory(storage: str | None, bytes_each: int) -> bool:
    """Fit and search a memory-mapped bank of 1 GB in a process of its own and see how far its memory grows."""
    rows, width, chunk = 512_000, 512, 600
    command = [sys.executable, "-c", _PROGRAM, str(rows), str(width), storage or ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wanted = rows * width * bytes_each / 1e6 + chunk
    what = f"memory of KNN beyond a given bank of {rows:,} x {width} ({rows * width * 4 / 1e6:.0f} MB)"
    what += f", copied as {storage}" if storage else ", not copied"
    return report(what, float(done.stdout) / 1e6, "MB", wanted, at_least=False)


_PROGRAM = """
import sys, tempfile
import torch
import flatfold as ff

rows, width, storage = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
torch.set_num_threads(1)

def private_peak():
    # anonymous memory only: pages of the mapped file can be dropped at any time
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return 1024 * int(lines["RssAnon"].split()[0])

with tempfile.NamedTemporaryFile() as file:
    mapped = torch.from_file(file.name, shared=True, size=rows * width).view(rows, width)
    for start in range(0, rows, 65536):
        mapped[start : start + 65536].normal_().relu_()
    head = ff.Head(torch.randn(10, width))
    ff.detectors.Knn(50, storage).fit(ff.FeatureBank(mapped[:1000]), head)(torch.rand(1024, width))
    before = private_peak()
    peak = [before]
    import threading, time
    done = threading.Event()
    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], private_peak())
            time.sleep(0.002)
    watcher = threading.Thread(target=watch)
    watcher.start()
    detector = ff.detectors.Knn(50, storage).fit(ff.FeatureBank(mapped), head)
    detector(torch.rand(1024, width))
    done.set()
    watcher.join()
    print(peak[0] - before)
"""

"""The service under load on loopback: throughput and latency at saturation, and what micro-batching is worth."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

import flatfold as ff
from flatfold.network.model_loading import make_model

from .ratio import report

ROOT = Path(__file__).parents[1]
SECONDS, BODIES = 8, 16
# Bodies in turn, and at the end one line of JSON: wrk itself prints rounded figures.
SCRIPT = """
local bodies, i = {}, 0
for n = 1, %d do
  local file = io.open(string.format("%s/%%d.body", n), "rb")
  bodies[n] = file:read("*a")
  file:close()
end
request = function()
  i = i %% #bodies + 1
  return wrk.format("POST", "/score", {["Content-Type"] = "%s"}, bodies[i])
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format('{"requests": %%d, "seconds": %%f, "p50": %%f, "p99": %%f, "errors": %%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class Network(NamedTuple):
    """What is served: a function, the folder it is looked for in, and the side of its images."""

    name: str
    folder: Path
    side: int
    connections: int


RESNET20 = Network("cifar_resnet:resnet20", ROOT / "examples", 32, 32)
RESNET50 = Network("benchmarks.networks:resnet50", ROOT, 224, 8)


def run() -> list[bool]:
    """Load the service with images and with features, with and without micro-batching, and with both runtimes."""
    if shutil.which("wrk") is None:
        print("skip  the service under load: wrk is not installed (apt-get install wrk)")
        return []
    return [*_batching(RESNET20), *_runtimes(RESNET20), *_runtimes(RESNET50)]


def _batching(network: Network) -> list[bool]:
    passed = []
    with TemporaryDirectory() as place:
        folder = Path(place)
        width = _make_guard(folder, network)
        features = np.random.default_rng(0).random((BODIES, width), np.float32)
        kinds = {"image/png": _images(network), "application/octet-stream": list(map(bytes, features))}
        for kind, bodies in kinds.items():
            loads = {most: _loaded(folder, network, kind, bodies, "--max-batch", most) for most in (64, 1)}
            for most, load in loads.items():
                _print(f"{kind}, batches of at most {most}", network, load)
            both = [load["requests"] / load["seconds"] for load in loads.values()]
            what = f"{kind}: throughput with micro-batching against none"
            passed.append(report(what, both[0] / both[1], "times", 1.0 if kind == "image/png" else 0.8))
            errors = sum(load["errors"] for load in loads.values())
            passed.append(report(f"{kind}: errors at saturation", errors, "requests", 0, at_least=False))
    return passed


def _runtimes(network: Network) -> list[bool]:
    """Load the service twice with each runtime, in turn."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        _make_guard(folder, network)
        rates: dict[str, list[float]] = {"torch": [], "onnx": []}
        for _ in range(2):
            for runtime, seen in rates.items():
                load = _loaded(folder, network, "image/png", _images(network), "--runtime", runtime)
                _print(f"runtime {runtime}", network, load)
                seen.append(load["requests"] / load["seconds"])
    ratio = sum(rates["onnx"]) / sum(rates["torch"])
    return [report(f"{network.name}: requests per second with onnx against torch", ratio, "times", 1.0)]


def _print(what: str, network: Network, load: dict[str, float]) -> None:
    rate = load["requests"] / load["seconds"]
    print(
        f"      {network.name}, {what}, {network.connections} connections: {rate:.1f} requests per second, "
        f"p50 {load['p50']:.1f} ms, p99 {load['p99']:.1f} ms, {load['errors']:.0f} errors"
    )


def _make_guard(folder: Path, network: Network) -> int:
    """Write the guard of an untrained network, which takes as long as a trained one, and return its width."""
    model = make_model(network.name, network.folder, seed=0).eval()
    inputs = torch.rand(40, 3, network.side, network.side).split(20)
    guard = ff.Guard.fit(model, inputs, method="fold", fpr=0.1, loading=ff.Loading(transform=ff.Transform()))
    guard.save(folder / "guard.safetensors")
    return guard.network.found.head.width


def _images(network: Network) -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (BODIES, network.side, network.side, 3), np.uint8)
    return [_png(each) for each in pixels]


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _loaded(folder: Path, network: Network, kind: str, bodies: list[bytes], *options: object) -> dict[str, float]:
    for number, body in enumerate(bodies, 1):
        (folder / f"{number}.body").write_bytes(body)
    script = folder / "load.lua"
    script.write_text(SCRIPT % (len(bodies), folder, kind))
    with _served(folder, network, *options) as address:
        for seconds in (2, SECONDS):  # the first to warm up
            words = f"wrk -d{seconds}s -t1 -c{network.connections} --timeout 20s -s {script} {address}"
            text = subprocess.run(words.split(), capture_output=True, text=True, check=True, timeout=60).stdout
    figures: dict[str, float] = json.loads(text.splitlines()[-1])
    return figures


@contextmanager
def _served(folder: Path, network: Network, *options: object) -> Iterator[str]:
    """Yield the address of a service in a process of its own, and stop it."""
    command = [sys.executable, "-m", "flatfold", "serve", folder / "guard.safetensors", "--port", "0"]
    command += ["--model", network.name, *options]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    piped = {"stderr": subprocess.STDOUT, "stdout": subprocess.PIPE}
    with subprocess.Popen(list(map(str, command)), cwd=network.folder, text=True, env=environment, **piped) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"http://[0-9.]+:[0-9]+", line):
                    yield found[0]
                    return
            raise RuntimeError("the service did not start")
        finally:
            process.terminate()
            process.wait(timeout=30)

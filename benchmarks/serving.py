"""The service under load on loopback: throughput and latency at saturation, and what micro-batching is worth."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import flatfold as ff

from .ratio import report

EXAMPLES = Path(__file__).parents[1] / "examples"
SECONDS, CONNECTIONS, BODIES = 8, 32, 16
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


def run() -> list[bool]:
    """Load the service with images and with features, with and without micro-batching."""
    if shutil.which("wrk") is None:
        print("skip  the service under load: wrk is not installed (apt-get install wrk)")
        return []
    passed = []
    with TemporaryDirectory() as folder:
        width = _make_guard(Path(folder))
        generator = np.random.default_rng(0)
        pixels = generator.integers(0, 256, (BODIES, 32, 32, 3), np.uint8)
        features = generator.random((BODIES, width), np.float32)
        kinds = {"image/png": [_png(each) for each in pixels], "application/octet-stream": list(map(bytes, features))}
        for kind, bodies in kinds.items():
            loads = {most: _loaded(Path(folder), most, kind, bodies) for most in (64, 1)}
            for most, load in loads.items():
                rate = load["requests"] / load["seconds"]
                print(
                    f"      {kind}, {CONNECTIONS} connections, batches of at most {most}: {rate:.0f} requests per "
                    f"second, p50 {load['p50']:.1f} ms, p99 {load['p99']:.1f} ms, {load['errors']:.0f} errors"
                )
            both = [load["requests"] / load["seconds"] for load in loads.values()]
            what = f"{kind}: throughput with micro-batching against none"
            passed.append(report(what, both[0] / both[1], "times", 1.5 if kind == "image/png" else 0.8))
            errors = sum(load["errors"] for load in loads.values())
            passed.append(report(f"{kind}: errors at saturation", errors, "requests", 0, at_least=False))
    return passed


def _make_guard(folder: Path) -> int:
    """Write the weights and the guard of an untrained ResNet-20, which takes as long as a trained one."""
    sys.path.insert(0, str(EXAMPLES))
    from cifar_resnet import resnet20  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = resnet20().eval()
    save_file(model.state_dict(), folder / "weights.safetensors")
    guard = ff.Guard.fit(model, torch.rand(200, 3, 32, 32).split(50), detector="fold", transform=ff.Transform())
    guard.save(folder / "guard.safetensors")
    return guard.found.head.width


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _loaded(folder: Path, most: int, kind: str, bodies: list[bytes]) -> dict[str, float]:
    for number, body in enumerate(bodies, 1):
        (folder / f"{number}.body").write_bytes(body)
    script = folder / "load.lua"
    script.write_text(SCRIPT % (len(bodies), folder, kind))
    with _served(folder, most) as address:
        options = [f"-t1 -c{CONNECTIONS} --timeout 10s -s {script} {address}"]
        for seconds in (2, SECONDS):  # the first to warm up
            command = ["wrk", f"-d{seconds}s", *" ".join(options).split()]
            text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    figures: dict[str, float] = json.loads(text.splitlines()[-1])
    return figures


@contextmanager
def _served(folder: Path, most: int) -> Iterator[str]:
    """Yield the address of a service in a process of its own, and stop it."""
    command = [sys.executable, "-m", "flatfold", "serve", folder / "guard.safetensors", "--port", "0"]
    command += [
        "--model",
        "cifar_resnet:resnet20",
        "--weights",
        folder / "weights.safetensors",
        "--max-batch",
        str(most),
    ]
    with subprocess.Popen(
        list(map(str, command)), cwd=EXAMPLES, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    ) as process:
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

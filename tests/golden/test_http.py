"""Status and keys of the answers of `flatfold serve`, as a process of its own."""

import http.client
import io
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.golden.inputs import MEAN, STD, load, write_network
from tests.golden.pins import FOLDER, check

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'flatfold[serve]'")


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a service that asks for a token."""
    folder = tmp_path_factory.mktemp("serve")
    write_network(folder)
    options = ["--model", "nets:tiny", "--weights", "tiny.safetensors", "--port", "0"]
    options += ["--mean", ",".join(map(str, MEAN)), "--std", ",".join(map(str, STD))]
    command = [sys.executable, "-m", "flatfold", "serve", str(FOLDER / "guard.safetensors"), *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                yield int(found[1])
                break
        else:
            raise AssertionError("".join(lines))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def form(files):
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in files
    ]
    return b"".join([*parts, b"--b--\r\n"]), "multipart/form-data; boundary=b"


def shape(value):
    """Return the keys of an answer, of its first row where it has rows."""
    if isinstance(value, dict):
        return {key: shape(entry) if key == "rows" else type(entry).__name__ for key, entry in sorted(value.items())}
    return [len(value), shape(value[0])]


def test_answers(port):
    tensors = load()
    known, noise = (tensors[name][0].numpy() for name in ("test", "noise"))
    rows = np.linspace(0, 1, 32, dtype="<f4").reshape(2, 16)
    requests = {
        "an image": ("POST", "/score", png(known), "image/png"),
        "an explanation": ("POST", "/score?explain=true", png(noise), "image/png"),
        "a form": ("POST", "/score", *form([("a.png", png(known)), ("b.png", png(noise))])),
        "features": ("POST", "/score", rows.tobytes(), "application/octet-stream"),
        "a wrong query": ("POST", "/score?explain=maybe", png(known), "image/png"),
        "a cut image": ("POST", "/score", png(known)[:60], "image/png"),
        "an empty body": ("POST", "/score", b"", "image/png"),
        "another type": ("POST", "/score", b"hello", "text/plain"),
        "features of another width": ("POST", "/score", rows.tobytes()[:-4], "application/octet-stream"),
        "features that are not finite": ("POST", "/score", b"\xff" * 64, "application/octet-stream"),
        "the stream": ("GET", "/stream", None, None),
        "health": ("GET", "/healthz", None, None),
        "metrics": ("GET", "/metrics", None, None),
        "the page": ("GET", "/", None, None),
        "an unknown path": ("GET", "/nothing", None, None),
        "another method": ("GET", "/score", None, None),
    }
    found, numbers = {}, {}
    for name, (method, path, body, kind) in requests.items():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        content, media = answer.read(), answer.getheader("content-type").partition(";")[0]
        connection.close()
        found[name] = {"status": answer.status, "type": media}
        if media == "application/json":
            found[name]["keys"] = shape(json.loads(content))
            for i, row in enumerate(json.loads(content).get("rows", [])):
                numbers[f"{name} {i}"] = [row["score"], row["p_value"], row["predicted"], row["is_ood"]]
    check("http", found)
    check("http_numbers", numbers, rtol=1e-4, atol=1e-6)

"""Services on free ports of this machine, around a small network of grey 4 x 4 images, and a client for them."""

import http.client
import io
import json
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.data.images import ArrayImages
from flatfold.serve.app import create_app
from flatfold.serve.server import bind, make_server
from flatfold.serve.settings import Settings

TRANSFORM = ff.Transform(mode="L", mean=(0.4,), std=(0.3,), resize=4, crop=4)
WIDTH, CLASSES = 8, 3


class Net(nn.Module):
    """Three classes; with a lock that a test may hold, and a value of the first pixel that it cannot bear."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():  # a class is known by its pixel of the second row
            self.inner.weight[:CLASSES, 4 : 4 + CLASSES] += torch.eye(CLASSES)
            self.head.weight[:, :CLASSES] += 2 * torch.eye(CLASSES)
        self.held = threading.Lock()
        self.calls, self.sizes = 0, []

    def forward(self, x):
        self.calls += 1
        with self.held:
            self.sizes.append(len(x))
            if x.shape[0] and float(x[:, 0, 0, 0].max()) > 1.9:
                raise RuntimeError("a first pixel of 255 in /secret/place is too much")
            return self.head(torch.relu(self.inner(x.flatten(1))))


def pixels(n, seed=0):
    """Grey images, each with a bright pixel for its class; the first pixel is never 255."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, (n, 4, 4), dtype=np.uint8), np.arange(n) % CLASSES
    x[np.arange(n), 1, y] = 255
    return x, y


def encoded(array, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, rows=b""):
    """A PNG of a declared size, whatever pixels are in it."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def form(files, boundary="limit"):
    """Return the body and the type of a form of (file name, content); None as a name is a field that is no file."""
    lines = []
    for i, (name, content) in enumerate(files):
        named = "" if name is None else '; filename="' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
        lines += [f'--{boundary}\r\nContent-Disposition: form-data; name="f{i}"{named}\r\n\r\n'.encode(), content]
        lines += [b"\r\n"]
    return b"".join([*lines, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert list(self.json) == ["error"]
        return self.json["error"]


@dataclass
class Running:
    """A service that runs, and how to talk with it."""

    app: object
    port: int
    server: object
    thread: threading.Thread

    @property
    def service(self):
        return self.app.state.service

    def ask(self, method, path, body=None, **headers):
        """Send a request; names of headers have _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def score(self, body, kind="image/png", query="", **headers):
        return self.ask("POST", "/score" + query, body, Content_Type=kind, **headers)

    def features(self, rows, query="", **headers):
        return self.score(np.asarray(rows, "<f4").tobytes(), "application/octet-stream", query, **headers)


@contextmanager
def running(served, /, port=0, **settings):
    app = create_app(served, Settings(**settings))
    bound = bind("127.0.0.1", port)
    server = make_server(app)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Running(app, bound.getsockname()[1], server, thread)
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
        assert not thread.is_alive()


def until(condition, seconds=60):
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def held(model, *requests):
    """Hold a model in its forward pass, which the first of these functions starts; yield their futures."""
    model.calls = 0
    with ThreadPoolExecutor(max(1, len(requests))) as pool, model.held:
        first = pool.submit(requests[0])
        until(lambda: model.calls == 1)
        futures = [first, *map(pool.submit, requests[1:])]
        yield futures


def make_guard(method="fold", fpr=0.1, **options):
    torch.manual_seed(5)
    return ff.Guard.fit(Net().eval(), ArrayImages(*pixels(300), TRANSFORM), method=method, fpr=fpr, **options)

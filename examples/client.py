"""A client for ``flatfold serve``: ``python examples/client.py http://127.0.0.1:8000 cat.png dog.png``.

It needs nothing but the standard library, so that the file can be copied into any program.
"""

import json
import mimetypes
import os
import struct
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # predicted, class, score, p_value, is_ood; of an image also name


class ServiceError(Exception):
    """The service refused a request; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Client:
    """Score images and features with a service.

    Args:
        address: Such as ``http://127.0.0.1:8000``.
        token: If the service asks for one.
        per_request: Images in one request; the service has a limit, ``--max-images``.
        retries: How often a request is sent again when the service is busy.
        timeout: Seconds to wait for an answer.
    """

    def __init__(
        self, address: str, token: str | None = None, per_request: int = 32, retries: int = 5, timeout: float = 60
    ) -> None:
        self.address, self.token, self.per_request = address.rstrip("/"), token, per_request
        self.retries, self.timeout = retries, timeout

    def score_images(self, paths: Iterable[Path | str], explain: bool = False) -> Iterator[Row]:
        """Yield a row for each image file, in their order."""
        files = list(map(Path, paths))
        for start in range(0, len(files), self.per_request):
            boundary = uuid.uuid4().hex
            parts = [_part(boundary, path) for path in files[start : start + self.per_request]]
            body = b"".join([*parts, f"--{boundary}--\r\n".encode()])
            yield from self._score(body, f"multipart/form-data; boundary={boundary}", explain)

    def score_features(self, rows: Iterable[Sequence[float]], explain: bool = False) -> list[Row]:
        """Return a row for each row of features: lists of numbers, or a numpy array."""
        values = list(chain.from_iterable(rows))
        return self._score(struct.pack(f"<{len(values)}f", *values), "application/octet-stream", explain)

    def stream(self) -> dict[str, Any]:
        """Return the settings of the guard, and the counts of everything that the service has scored."""
        return self._ask("/v1/stream")

    def _score(self, body: bytes, kind: str, explain: bool) -> list[Row]:
        rows: list[Row] = self._ask(f"/v1/score?explain={str(explain).lower()}", body, kind)["rows"]
        return rows

    def _ask(self, path: str, body: bytes | None = None, kind: str = "") -> dict[str, Any]:
        headers = {"Content-Type": kind} if kind else {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.address + path, body, headers)
        for attempt in range(self.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 503 or attempt == self.retries:
                        raise ServiceError(error.code, _message(error.read())) from None
                    time.sleep(float(error.headers.get("Retry-After", 1)) * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def _part(boundary: str, path: Path) -> bytes:
    name = path.name.replace("\\", "\\\\").replace('"', '\\"')
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\nContent-Type: {kind}'
    return f"{head}\r\n\r\n".encode() + path.read_bytes() + b"\r\n"


def _message(body: bytes) -> str:
    """Return the message of an error; a proxy in between may answer with something else than JSON."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def main() -> None:
    """Score the images that the command line names, and print a line for each."""
    address, *paths = sys.argv[1:]
    client = Client(address, token=os.environ.get("FLATFOLD_TOKEN"))
    for row in client.score_images(paths):
        verdict = "OOD" if row["is_ood"] else "ID"
        print(f"{row['name']}: {verdict}, class {row['class'] or row['predicted']}, p = {row['p_value']:.3f}")


if __name__ == "__main__":
    main()

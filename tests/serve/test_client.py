"""examples/client.py against a running service."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.serve.small_service import WIDTH, encoded, pixels

pytestmark = pytest.mark.slow
TOKEN = "correct-horse-battery"
CLIENT = Path(__file__).parents[2] / "examples" / "client.py"


@pytest.fixture
def example():
    spec = spec_from_file_location("example_client", CLIENT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_features_and_counts(example, start, guard, tmp_path):
    service = start(guard, token=TOKEN, names=("ant", "bee", "cat"), max_images=4)
    paths = [tmp_path / f'a "{i}".png' for i in range(9)]
    for path, array in zip(paths, pixels(9)[0], strict=True):
        path.write_bytes(encoded(array))
    client = example.Client(f"http://127.0.0.1:{service.port}/", TOKEN, per_request=4)
    rows = list(client.score_images(paths, explain=True))
    alone = [service.score(path.read_bytes(), Authorization=f"Bearer {TOKEN}").json["rows"][0] for path in paths]
    assert [row["name"] for row in rows] == [path.name for path in paths]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in alone])
    assert all(row["explanation"] for row in rows)
    assert len(client.score_features([[0.5] * WIDTH] * 3)) == 3
    assert client.stream()["seen"] == 9 + 9 + 3


def test_refused_requests_raise_and_busy_ones_are_sent_again(example, start, guard, monkeypatch):
    service = start(guard, token=TOKEN)
    address, rows, waits = f"http://127.0.0.1:{service.port}", [[0.5] * WIDTH], []
    with pytest.raises(example.ServiceError, match="401: missing or wrong token"):
        example.Client(address).stream()
    with pytest.raises(example.ServiceError, match="422: features must be rows of"):
        example.Client(address, TOKEN).score_features([[1.0]])
    batcher = service.service.batcher

    def wait(seconds):
        waits.append(seconds)
        batcher._max_waiting = len(waits) // 3  # has room again after the third wait

    monkeypatch.setattr(example, "time", SimpleNamespace(sleep=wait))
    batcher._max_waiting = 0
    with pytest.raises(example.ServiceError, match="503: the queue"):
        example.Client(address, TOKEN, retries=2).score_features(rows)
    assert len(example.Client(address, TOKEN, retries=2).score_features(rows)) == 1
    assert waits == [1, 2, 1]

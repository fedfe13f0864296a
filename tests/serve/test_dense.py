"""The service of a guard for every position: verdicts on images, and pictures of their alarms."""

import io
from base64 import b64decode

import numpy as np
import pytest
import torch
from PIL import Image

from flatfold import Guard, Loading
from tests.serve.small_service import form
from tests.small_scenes import N, network, write_scenes


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A guard, and a folder of new images of which the first is unusual."""
    folder = tmp_path_factory.mktemp("scenes")
    loading = Loading(write_scenes(folder, N), masks=folder / "masks")
    write_scenes(folder / "new", 3, seed=2, unusual=(0,))
    return Guard.fit(network(), folder / "images", method="mds", fpr=0.1, loading=loading), folder / "new/images"


def picture(text):
    with Image.open(io.BytesIO(b64decode(text))) as image:
        return image.mode, np.asarray(image)


def test_rows_and_pictures_are_those_of_the_guard(scenes, start):
    guard, folder = scenes
    service = start(guard)
    files = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.png"))]
    body, kind = form(files)
    rows = service.score(body, kind, "?mask=true&overlay=true").json["rows"]
    verdict = guard(folder)
    assert verdict.is_ood[0].any()
    for row, each in enumerate(rows):
        assert each["name"] == files[row][0]
        assert (each["predicted"], each["is_ood"]) == (None, bool(verdict.image_is_ood[row]))
        assert each["p_value"] == pytest.approx(float(verdict.image_p_value[row]))
        assert each["share_ood"] == pytest.approx(float(verdict.is_ood[row].double().mean()))
        mode, mask = picture(each["mask"])
        assert mode == "L"
        assert np.array_equal(mask, 255 * verdict.is_ood[row].numpy())
        assert np.array_equal(picture(each["overlay"])[1], np.asarray(guard.overlay(str(folder / files[row][0]))))
    (plain,) = service.score(files[0][1]).json["rows"]
    assert not plain.keys() & {"mask", "overlay"}
    facts = service.get("/stream").json
    assert (facts["seen"], facts["alarms"]) == (4, int(verdict.image_is_ood.sum() + verdict.image_is_ood[0]))
    shares = [each["share_ood"] for each in (*rows, plain)]
    assert facts["share_ood"] == pytest.approx(np.mean(shares), abs=1e-6)
    assert facts["calibrated"] == N // 2
    assert b"data-dense" in service.get("/").body


def test_what_makes_no_sense_is_refused(scenes, start, guard):
    service = start(scenes[0])
    features = service.features(torch.zeros(1, 6).numpy())
    assert (features.status, "every position" in features.error) == (415, True)
    wrong = service.score(b"", query="?mask=maybe")
    assert (wrong.status, "'mask' must be" in wrong.error) == (422, True)
    whole = start(guard).score(b"x", query="?mask=true")
    assert (whole.status, "no masks" in whole.error) == (422, True)

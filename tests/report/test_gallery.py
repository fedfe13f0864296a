"""The most wrong images: each in the page once, with what is known of it."""

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from flatfold.report import gallery as module
from flatfold.report.captions import told_apart, words_of
from flatfold.report.gallery import data_uri, gallery, key_of


def stored(html):
    return json.loads(re.search(r'id="wrong-data">(.*?)</script>', html)[1])


def shown(html):
    """Return the keys and addresses of the pictures that need no script."""
    body = html[: html.index("<template")]
    return {key: address for address, key in re.findall(r'<img src="([^"]*)"[^>]*data-key="([^"]*)"', body)}


def test_a_picture_is_the_same_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    content = base64.b64decode(data_uri(pixels).removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), pixels)


def test_every_image_is_in_the_page_once(make_run):
    results = make_run(("a", "b", "c"), pictures=8)
    html = gallery(results)
    assert shown(html).keys().isdisjoint(stored(html)["pictures"])
    assert shown(html).keys() | stored(html)["pictures"].keys() == {key_of(wrong) for wrong in results.wrong}
    addresses = re.findall(r"data:image/png;base64,[^\"]*", html)
    assert len(addresses) == len(set(addresses)) == len(results.thumbnails)


def test_without_a_script_the_best_method_is_shown(make_run):
    results = make_run(("a", "b", "c"))
    html = gallery(results)
    best = results.ranked[0].method
    assert f"Method: <b>{best}</b>" in html
    assert set(shown(html)) == {key_of(wrong) for wrong in results.wrong if wrong.method == best}
    assert list(stored(html)["methods"]) == [run.method for run in results.ranked]


def test_a_picture_says_score_share_class_and_name(make_run):
    results = make_run(("a",), pictures=1)
    known, unknown = results.wrong[0], results.wrong[1]
    assert (known.dataset, unknown.dataset) == ("id", "near-set")
    (told,) = words_of([replace(known, score=2.5)])
    assert told == {
        "file": f"{known.row}.png",
        "place": f"{known.name}, row {known.row} of the known test images",
        "score": "score 2.50",
        "share": f"above {100 * known.share:.1f} % of known",
        "classes": "seen as 1, is 2",
    }
    (other,) = words_of([unknown])
    assert other["classes"] == "seen as 1"
    assert other["place"].endswith(f"row {unknown.row} of near-set")
    html = gallery(results)
    for text in words_of([known])[0].values():
        assert f">{text}</span>" in html
    assert stored(html)["methods"]["a"]["near-set"][0] == {"key": key_of(unknown), "name": unknown.name, **other}


def test_classes_are_called_by_their_names_where_these_are_known(make_run):
    results = make_run(("a",), pictures=1, classes=["ant", "bee", "cat"])
    assert "seen as bee, is cat" in gallery(results)
    known = results.wrong[0]
    assert words_of([known], ["ant", "bee"])[0]["classes"] == "seen as bee, is 2"  # a name too few
    assert "seen as 1, is 2" in gallery(make_run(("a",), pictures=1, classes=[]))


@pytest.mark.parametrize(
    ("scores", "texts"),
    [
        ([-0.10102, -0.10101, -0.1], ["-0.10102", "-0.10101", "-0.10000"]),
        ([295.2, 1.0, 0.0], ["295", "1.00", "0.00"]),
        ([3e-12, 4e-12], ["3.00e-12", "4.00e-12"]),
        ([1.5, 1.5, 1.5], ["1.50", "1.50", "1.50"]),
        ([0.12345678901, 0.12345678902], ["0.123456789"] * 2),  # no float32 has so many digits
        ([], []),
    ],
)
def test_scores_have_as_many_digits_as_tell_them_apart(scores, texts):
    assert told_apart(scores) == texts


@pytest.mark.parametrize("path", ["/data/birds/one/x y.png", "C:\\birds\\x y.png", "one/x y.png/", "x y.png"])
def test_the_last_part_of_a_path_is_shown_and_the_whole_comes_at_a_click(make_run, path):
    results = make_run(("a",), pictures=1)
    results = replace(results, wrong=[replace(wrong, name=path) for wrong in results.wrong])
    card = re.search(r'<figure class="card">.*?</figure>', gallery(results))[0]
    summary, rest = re.search(r"<details><summary>(.*?)</summary>(.*?)</details>", card).groups()
    assert '<span class="file">x y.png</span>' in summary
    assert f'title="{path}"' in summary
    assert rest.startswith(f'<span class="place">{path}, row ')


def test_digits_are_counted_within_a_row(make_run):
    results = make_run(("a",), pictures=2)
    scores = iter([0.1011, 0.1012, 5.0, 6.0, 7.0, 8.0])
    results = replace(results, wrong=[replace(wrong, score=next(scores)) for wrong in results.wrong])
    groups = stored(gallery(results))["methods"]["a"]
    assert [entry["score"] for entry in groups["id"]] == ["score 0.1011", "score 0.1012"]
    assert [entry["score"] for entry in groups["near-set"]] == ["score 5.00", "score 6.00"]


def test_at_most_eight_of_a_data_set_are_shown_worst_first(make_run):
    results = make_run(("a",), pictures=11)
    groups = stored(gallery(results))["methods"]["a"]
    assert [entry["key"] for entry in groups["id"]] == [
        key_of(wrong) for wrong in results.wrong if wrong.dataset == "id"
    ][:8]


def test_fewer_are_shown_when_all_would_be_too_many(make_run, monkeypatch):
    results = make_run(("a", "b"), pictures=8)
    size = len(data_uri(next(iter(results.thumbnails.values()))))
    monkeypatch.setattr(module, "BUDGET", 20 * size)
    html = gallery(results)
    counts = {len(entries) for groups in stored(html)["methods"].values() for entries in groups.values()}
    assert len(counts) == 1
    assert 3 <= counts.pop() < 8
    assert sum(map(len, re.findall(r"data:image/png[^\"]*", html))) <= 20 * size
    monkeypatch.setattr(module, "BUDGET", 0)
    assert {len(entries) for entries in stored(gallery(results))["methods"]["a"].values()} == {1}


@pytest.mark.parametrize(("side", "small"), [(64, True), (65, False)])
def test_small_pictures_are_enlarged_without_a_blur(make_run, side, small):
    results = make_run(("a",), pictures=1)
    pictures = {key: np.zeros((side, 9, 3), dtype=np.uint8) for key in results.thumbnails}
    assert ('id="gallery" class="small"' in gallery(replace(results, thumbnails=pictures))) == small


def test_a_picture_that_is_missing_leaves_its_words(make_run):
    results = make_run(("a",), pictures=1)
    html = gallery(replace(results, thumbnails={}))
    assert set(shown(html).values()) == {module.EMPTY}
    assert "seen as 1, is 2" in html


def test_a_method_without_images_is_not_offered(make_run):
    results = make_run(("a", "b"))
    html = gallery(replace(results, wrong=[wrong for wrong in results.wrong if wrong.method == "b"]))
    assert re.findall(r"<option value=\"(.*?)\"", html) == ["b"]
    assert "Method: <b>b</b>" in html


def test_results_without_images_have_no_gallery(make_run):
    assert gallery(make_run(extras=False)) == ""

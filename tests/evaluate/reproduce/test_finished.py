"""`evaluate.reproduce.finished`: networks of earlier runs count where they belong to this one."""

import pytest

from flatfold.evaluate.reproduce.finished import check_suite, finished
from tests.toy_ablations import make_ablations, make_material, make_results, save


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with two networks; tests write only what they take away again."""
    folder = tmp_path_factory.mktemp("kept")
    for name in ("one", "two"):
        save(make_material(name), folder / name)
    return folder


def names(found):
    return [material.network for material in found[0]]


def test_finished_networks_of_earlier_runs_are_judged_too_in_the_order_of_the_suite(kept):
    found = finished(kept, ["two", "one", "three"], now=["one"])
    assert (names(found), found[1]) == (["two", "one"], {})


def test_a_network_that_is_not_finished_is_no_part_of_it(kept):
    path = kept / "two" / "curvature.json"
    text = path.read_text()
    path.unlink()
    assert names(finished(kept, ["one", "two"], now=["one"])) == ["one"]
    with pytest.raises(ValueError, match=r"curvature\.json"):
        finished(kept, ["one", "two"], now=["two"])
    path.write_text(text)


def test_an_earlier_network_that_cannot_be_read_is_left_out_with_the_reason_but_one_of_this_run_is_an_error(kept):
    path = kept / "two" / "ablations.json"
    text = path.read_text()
    path.write_text(text[:200])
    found = finished(kept, ["one", "two"], now=["one"])
    assert names(found) == ["one"]
    assert "the ablations in" in found[1]["two"]
    with pytest.raises(ValueError, match="cannot be read"):
        finished(kept, ["one", "two"], now=["two"])
    path.write_text(text)


def test_an_earlier_network_that_saw_fewer_images_is_left_out_but_one_of_this_run_is_not(kept, tmp_path):
    for name, unknown in (("one", 80), ("two", 70)):
        results = make_results(network=name, unknown=unknown)
        save(make_material(name, results=results, ablations=make_ablations(unknown=unknown)), tmp_path / name)
    found = finished(tmp_path, ["one", "two"], now=["one"])
    assert (names(found), found[1]) == (
        ["one"],
        {"two": "it was judged on other numbers of images. Run it with the same options."},
    )
    assert names(finished(tmp_path, ["one", "two"], now=["one", "two"])) == ["one", "two"]


def test_results_of_another_suite_are_not_touched(kept, tmp_path):
    with pytest.raises(
        ValueError, match=r"one holds results of the suite 'toy', but this run is of 'mine'\. Give another"
    ):
        check_suite(kept, ["one", "two"], "mine")
    check_suite(kept, ["one", "two"], "toy")
    check_suite(tmp_path, [""], "mine")
    (tmp_path / "results.json").write_text("{")
    check_suite(tmp_path, [""], "mine")

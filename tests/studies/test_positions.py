"""The promise of guards for every pixel: over redraws of calibration images, at most the rate asked for."""

import pytest

from studies.positions import REDRAWS, measure, scene_scores


def holds(row):
    return row.guard <= row.fpr + 3 * row.guard_error


def test_few_redraws_of_dependent_pixels_keep_the_rate_where_pooled_pixels_exceed_it():
    row = measure(None, 30, 0.05, redraws=300)
    assert holds(row)
    assert row.guard > 0.4 * row.fpr  # not by never raising an alarm
    assert row.pooled > row.fpr + 3 * row.pooled_error


@pytest.mark.slow
@pytest.mark.parametrize(("images", "fpr"), [(20, 0.05), (30, 0.05), (100, 0.01)])
def test_400_redraws_keep_the_rate_on_scenes_and_on_dependent_pixels(images, fpr, tmp_path_factory):
    for pool in (None, scene_scores(tmp_path_factory.getbasetemp() / "scenes")):
        row = measure(pool, images, fpr)
        assert REDRAWS == 400
        assert holds(row), row
        if images == 30 and pool is None:
            assert row.pooled > row.fpr + 3 * row.pooled_error

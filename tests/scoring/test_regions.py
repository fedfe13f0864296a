"""`scoring.regions`: alarms of an image as connected regions, the largest first."""

import torch

from flatfold import Explanation
from tests.refusals import refused
from tests.small_scenes import SIZE, C, fitted, scenes


def test_regions_are_the_alarms_and_explained_by_their_most_unusual_position():
    guard, (x, _) = fitted("fourfold"), scenes(4, seed=3)
    x[:2, :, 2:6, 2:8] *= 30
    x[0, :, 9:, 13:] *= 30
    verdict, names = guard(x), [f"kind {label}" for label in range(C)]
    found = guard.explain(x, names=names, regions=99)
    assert len(found) == 4
    for row, regions in enumerate(found):
        alarms, covered = verdict.is_ood[row], torch.zeros(SIZE, dtype=torch.bool)
        assert abs(sum(region.share for region in regions) - float(alarms.double().mean())) < 1e-9
        assert [*regions] == sorted(regions, key=lambda region: -region.share)
        for region in regions:
            (top, bottom), (left, right) = region.box
            covered[top:bottom, left:right] = True
            assert alarms[top:bottom, left:right].any()
            assert isinstance(region.explanation, Explanation)
            assert region.explanation.is_ood
            inside = guard.calibrated(guard.network(x[row : row + 1]).features)[0].max()
            assert region.explanation.score <= inside + 1e-4
        assert not alarms[~covered].any()
    assert len(found[0]) >= 2
    best = max(found[0], key=lambda region: region.explanation.score).explanation
    top = guard.calibrated(guard.network(x[:1]).features)[0].max()
    assert abs(best.score - float(top)) < 1e-3
    assert best.signs
    assert "kind" in str(best)
    assert "% of it: OOD" in repr(found)
    assert "kind" in found._repr_html_()
    assert [len(regions) for regions in guard.explain(x, regions=1)] == [min(1, len(own)) for own in found]
    with refused("names", "one per class"):
        guard.explain(x, names=["one"])


def test_an_image_without_an_alarm_has_no_region():
    guard, (x, _) = fitted("mds", fpr=0.1), scenes(20, seed=4)
    quiet = [row for row in range(20) if not guard(x[row : row + 1]).is_ood.any()]
    assert quiet
    assert guard.explain(x[quiet[:1]])[0] == ()
    assert "no alarm" in repr(guard.explain(x[quiet[:1]]))

"""Monitor: counts that add up exactly, p-values that mean what they say, and files that are whole or refused."""

import json
import pickle
from functools import partial
from itertools import pairwise
from math import inf, isnan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flatfold.core.conformal import alarm_p_value, ks_p_value
from flatfold.detectors.base import Detector
from flatfold.scoring.calibrated import CalibratedDetector, Calibration, Verdict
from flatfold.scoring.monitor import Monitor, bin_counts, bin_edges
from tests.refusals import assert_refused

CLASSES = 3


class Bounded(Detector):
    """Scores that lie between two numbers."""

    def __init__(self, low, high):
        super().__init__()
        self.range = low, high

    def score(self, h):
        return h[:, 0]

    def score_range(self):
        return self.range


def draw(n, rng, shift=0.0):
    """Scores, and logits whose largest is that of a random class."""
    return torch.from_numpy(rng.normal(shift, size=n)), torch.from_numpy(rng.normal(size=(n, CLASSES)))


def make_calibrated(rng, samples=400, fpr=0.1, per_class=False, low=-inf, high=inf):
    score, logits = draw(samples, rng)
    predicted = logits.argmax(dim=-1) if per_class else None
    return CalibratedDetector(Bounded(low, high), Calibration.of(score, fpr, predicted, CLASSES))


def verdict_of(calibrated, score, logits):
    return Verdict(logits, score, *calibrated.calibration(score, logits.argmax(dim=-1)))


def monitor_of(calibrated, *batches):
    monitor = Monitor.of(calibrated)
    for score, logits in batches:
        monitor.add(verdict_of(calibrated, score, logits))
    return monitor


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=[False, True], ids=["together", "per class"])
def calibrated(request, rng):
    return make_calibrated(rng, per_class=request.param, low=-9.0, high=9.0)


@pytest.fixture
def plain(rng):
    return make_calibrated(rng, low=-9.0, high=9.0)


def assert_counts(counts, scores, edges):
    expected = [((low < scores) & (scores <= high)).sum() for low, high in pairwise(edges)]
    assert counts.tolist() == expected
    assert counts.sum() == len(scores)


def test_everything_is_counted_once(calibrated, rng):
    score, logits = draw(1000, rng, shift=1)
    monitor = monitor_of(calibrated, (score[:300], logits[:300]), (score[:0], logits[:0]), (score[300:], logits[300:]))
    alarm = verdict_of(calibrated, score, logits).is_ood
    assert (monitor.seen, monitor.alarms) == (1000, int(alarm.sum()))
    assert monitor.alarm_rate == monitor.alarms / 1000
    predicted = logits.argmax(dim=-1) if calibrated.calibration.per_class else torch.zeros(1000)
    for label, group in enumerate(monitor.groups):
        assert (group.seen, group.alarms) == (int((predicted == label).sum()), int(alarm[predicted == label].sum()))
    edges, stream, calibration = monitor.histogram()
    assert_counts(stream, score.numpy(), edges)
    known = calibrated.calibration.scores[calibrated.calibration.scores < inf].numpy()
    assert_counts(calibration, known, edges)
    stream[:] = 0
    assert monitor.histogram().stream.sum() == 1000, "a histogram is a copy"
    table = Monitor.of(calibrated)
    for part in (slice(0, 0), slice(0, 200), slice(200, 1000)):
        table.count(logits.argmax(1).numpy()[part], score.numpy()[part], alarm.numpy()[part])
    assert table.to_dict() == monitor.to_dict(), "rows of a table count as verdicts"


def test_p_values_are_those_of_the_counts(rng):
    calibrated = make_calibrated(rng, samples=199)
    monitor = monitor_of(calibrated, draw(500, rng, shift=0.1))
    assert monitor.alarm_p_value == alarm_p_value(monitor.alarms, 500, 199, 20)
    assert monitor.drift_p_value == ks_p_value(monitor.drift, 500, 199)


def test_of_several_classes_the_smallest_p_value_counts_as_often_as_classes_were_seen(rng):
    calibrated = make_calibrated(rng, per_class=True)
    score, logits = draw(300, rng, shift=0.3)
    logits[:, 1] = -inf  # class 1 is never predicted
    monitor = monitor_of(calibrated, (score, logits))
    counts = calibrated.calibration.counts.tolist()
    each = [
        alarm_p_value(group.alarms, group.seen, m, int(0.1 * (m + 1)))
        for group, m in zip(monitor.groups, counts, strict=True)
    ]
    assert [group.p_value for group in monitor.groups] == each
    assert each[1] == 1.0
    assert monitor.alarm_p_value == 2 * min(each) < 1
    assert monitor_of(calibrated, draw(60, rng, shift=-9)).alarm_p_value == 1.0


def test_drift_is_at_most_the_true_distance_and_nearly_that(calibrated, rng):
    for shift in (-1, -0.2, 0, 0.2, 1, 5):
        score, logits = draw(800, rng, shift)
        known = calibrated.calibration.scores[calibrated.calibration.scores < inf].numpy()
        true = stats.ks_2samp(score.numpy(), known).statistic
        monitor = monitor_of(calibrated, (score, logits))
        drift = monitor.drift
        assert true - 0.02 < drift <= true + 1e-12, shift
        assert (monitor.drift_p_value < 1e-9) == (abs(shift) >= 1), shift
        assert (monitor.alarm_p_value < 1e-9) == (shift >= 1), shift


@pytest.mark.parametrize("per_class", [False, True])
def test_p_values_are_valid_for_streams_like_the_calibration_data(per_class):
    rng, runs = np.random.default_rng(3), 300
    monitors = [  # each with a calibration of its own: the guarantee is over both draws
        monitor_of(make_calibrated(rng, per_class=per_class), draw(500, rng)) for _ in range(runs)
    ]
    for level in (0.05, 0.2):
        limit = stats.binom.isf(1e-3, runs, level)
        alarms = sum(monitor.alarm_p_value <= level for monitor in monitors)
        drifts = sum(monitor.drift_p_value <= level for monitor in monitors)
        assert stats.binom.ppf(1e-3, runs, 0.6 * level) <= alarms <= limit
        assert stats.binom.ppf(1e-3, runs, 0.4 * level) <= drifts <= limit


@given(data=st.data(), per_class=st.booleans(), seed=st.integers(0, 2**31))
def test_merging_in_any_order_equals_one_monitor_over_everything(data, per_class, seed):
    rng = np.random.default_rng(seed)
    calibrated = make_calibrated(rng, samples=150, fpr=0.2, per_class=per_class, high=6.0)
    batches = [draw(n, rng, shift=0.5) for n in data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))]
    parts = [monitor_of(calibrated, batch) for batch in data.draw(st.permutations(batches))]
    while len(parts) > 1:
        left, right = parts.pop(data.draw(st.integers(0, len(parts) - 1))), parts.pop()
        if data.draw(st.booleans()):
            left.merge(right)
            parts.append(left)
        else:
            parts.append(right + left)
    whole = monitor_of(calibrated, *batches)
    assert parts[0].to_dict() == whole.to_dict()
    assert parts[0].alarm_p_value == whole.alarm_p_value


def test_scores_of_any_type_beyond_the_ends_and_nan_are_counted_in_the_outer_bins(rng):
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        monitor = Monitor.of(make_calibrated(rng, low=-5.0, high=5.0))
        score = torch.tensor([-5.1, -5.0, 5.0, 5.1, inf, torch.nan], dtype=dtype, requires_grad=True)
        monitor.add(Verdict(torch.zeros(6, CLASSES), score, score, score > 4))
        stream = monitor.histogram().stream
        assert (stream[0], stream[-1], stream.sum()) == (2, 4, 6), dtype


def test_edges_are_quantiles_then_equal_steps_between_the_ends(rng):
    scores = rng.normal(size=12_800)
    edges = bin_edges(scores, -8.0, 20.0)
    assert (edges[0], edges[-1], len(edges)) == (-8.0, 20.0, 2 + 128 + 31)
    assert edges[1:129].tolist() == np.sort(scores)[99::100].tolist()
    assert np.diff(edges[128:]) == pytest.approx((20 - scores.max()) / 32)
    assert bin_counts(scores, edges).tolist() == [100] * 128 + [0] * 32
    for samples in (128, 400, 999):
        counts = bin_counts(scores[:samples], bin_edges(scores[:samples], -inf, inf))[:-1]
        assert (len(counts), counts.max() - counts.min() <= 1) == (128, True), samples
    open_ended = bin_edges(scores, -inf, inf)
    assert (open_ended[0], open_ended[-2], open_ended[-1], len(open_ended)) == (-inf, scores.max(), inf, 130)


@given(
    scores=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0000001]), min_size=1, max_size=300),
    low=st.sampled_from([-inf, -1.0, 0.0]),
    high=st.sampled_from([1.0, 2.0, inf]),
)
def test_edges_increase_whatever_the_scores_and_every_score_has_a_bin(scores, low, high):
    edges = bin_edges(np.array(scores), low, high)
    assert (np.diff(edges) > 0).all()
    assert (edges[0], edges[-1]) == (low, high)
    assert bin_counts(np.array(scores), edges).sum() == len(scores)


def filled(calibrated, seen, alarms):
    """A monitor with given counts, all scores in the uppermost bin."""
    content = Monitor.of(calibrated).to_dict()
    content["stream"][-1] = sum(seen)
    return Monitor.from_dict({**content, "seen": seen, "alarms": alarms})


def test_text_says_what_was_seen_whether_chance_explains_it_and_which_class_is_unusual(rng):
    calibrated = make_calibrated(rng, samples=999, fpr=0.05)
    empty = Monitor.of(calibrated)
    assert (empty.seen, empty.alarms, empty.alarm_p_value, empty.drift_p_value) == (0, 0, 1.0, 1.0)
    assert isnan(empty.alarm_rate)
    assert isnan(empty.drift)
    assert f"p = {alarm_p_value(1380, 12_000, 999, 50):.2g}" in str(filled(calibrated, [12_000], [1380]))
    calibrated = make_calibrated(rng, samples=999, fpr=0.05, per_class=True)
    assert "Class 1 " in str(filled(calibrated, [100, 1300, 5], [6, 1200, 0]))
    assert "Class" not in str(filled(calibrated, [100, 100, 5], [6, 5, 0]))


def test_json_and_files_give_the_same_monitor_back(calibrated, rng, tmp_path):
    for low, high in ((-9.0, 9.0), (-inf, inf), (0.0, inf)):
        calibrated.detector.range = low, high
        monitor = monitor_of(calibrated, draw(200, rng, shift=1))
        again = Monitor.from_dict(json.loads(json.dumps(monitor.to_dict(), allow_nan=False)))
        monitor.save(str(tmp_path / "new" / "monitor.json"))
        for other in (again, Monitor.load(tmp_path / "new" / "monitor.json"), pickle.loads(pickle.dumps(monitor))):  # noqa: S301
            assert other.to_dict() == monitor.to_dict()
            assert str(other) == str(monitor)
            assert (other + monitor).seen == 400
            assert other.histogram().edges.tolist() == monitor.histogram().edges.tolist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["monitor.json"]


def test_monitors_of_different_guards_are_not_merged(plain):
    scores, counts, fpr = plain.calibration.scores, plain.calibration.counts, plain.calibration.fpr
    changed = scores.clone()
    changed[0, 5] = (scores[0, 4] + scores[0, 5]) / 2
    others = {
        "another rate": plain.at(0.2),
        "another score": CalibratedDetector(plain.detector, Calibration(changed, counts, fpr)),
        "another range": CalibratedDetector(Bounded(-9.0, 10.0), plain.calibration),
        "as many thresholds": CalibratedDetector(plain.detector, plain.calibration.at(fpr + 1e-6)),
    }
    for what, other in others.items():
        one, two = Monitor.of(plain), Monitor.of(other)
        assert_refused(ValueError, "different guards", partial(one.merge, two), case=what)
        assert_refused(ValueError, "different guards", partial(two.__add__, one), case=what)
    same = pickle.loads(pickle.dumps(plain))  # noqa: S301
    same.calibration.fpr = np.float64(same.calibration.fpr)
    assert Monitor.of(same).to_dict() == Monitor.of(plain).to_dict()
    first = [torch.arange(40) < size for size in (19, 20)]  # all scores are equal, so the thresholds are too
    guards = [
        CalibratedDetector(Bounded(0, 50), Calibration.of(torch.ones(40), 0.1, label.long(), 2)) for label in first
    ]
    assert Monitor.of(guards[0]).to_dict()["guard"] != Monitor.of(guards[1]).to_dict()["guard"]


def test_what_cannot_be_counted_or_merged_is_refused_and_nothing_is_counted(rng):
    calibrated = make_calibrated(rng, per_class=True)
    monitor = Monitor.of(calibrated)
    five_classes = Verdict(torch.zeros(2, 5), torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.bool))
    too_long = verdict_of(calibrated, *draw(5, rng))._replace(is_ood=torch.ones(9, dtype=torch.bool))
    cases = [
        (lambda: monitor.add(torch.zeros(3)), TypeError, "Tensor"),
        (lambda: monitor.merge(monitor.to_dict()), TypeError, "dict"),
        (lambda: monitor.add(five_classes), ValueError, "3 classes"),
        (lambda: monitor.add(too_long), IndexError, ""),
        (lambda: monitor.count(np.array([0, 7]), np.zeros(2), np.array([False, True])), ValueError, "shapes"),
    ]
    for use, kind, keyword in cases:
        assert_refused(kind, keyword, use)
        assert (monitor.seen, monitor.histogram().stream.sum()) == (0, 0), keyword


def test_damaged_values_are_refused_with_what_is_wrong(plain, rng, tmp_path):
    whole, path = monitor_of(plain, draw(100, rng)).to_dict(), tmp_path / "monitor.json"
    stream, known, edges = whole["stream"], whole["known"], whole["edges"]
    alike, none, not_a_number = ([*edges[:3], value, *edges[4:]] for value in (edges[4], None, float("nan")))
    damage = {
        "seen": ([2.0], [True], [100, 0], ...),
        "alarms": ([-1], [999]),
        "stream": (..., [2**53, *stream[1:]], stream[:-1], [stream[0] + 1, *stream[1:]]),
        "known": (7, [99, *known[1:]]),
        "calibrated": ([], 400),
        "fpr": (1.5, "0.1", 0.001),
        "guard": ("me",),
        "edges": (..., alike, none, not_a_number, [0.0]),
    }
    for name, values in damage.items():
        for value in values:
            content = {key: other for key, other in {**whole, name: value}.items() if other is not ...}
            path.write_text(json.dumps(content))
            for read in (partial(Monitor.from_dict, content), partial(Monitor.load, path)):
                assert_refused(ValueError, f"damaged.*({name}|inconsistent|malformed)", read, case=(name, value))


def test_what_is_no_monitor_is_refused(plain, tmp_path):
    path = tmp_path / "monitor.json"
    for content in (None, [], {}, {"format": "flatfold-results"}, "text"):
        assert_refused(ValueError, "format|document", partial(Monitor.from_dict, content), case=content)
    newer = {**Monitor.of(plain).to_dict(), "version": 2}
    assert_refused(ValueError, "version 2", partial(Monitor.from_dict, newer))
    assert_refused(FileNotFoundError, "monitor.json", partial(Monitor.load, path))
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        assert_refused(ValueError, "monitor.json .*JSON", partial(Monitor.load, path), case=content[:9])

"""Monitor: counts that add up exactly, p-values that mean what they say, and files that are whole or refused."""

import json
import pickle
from itertools import pairwise
from math import inf, isnan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import flatfold as ff
from flatfold.core.drift import alarm_p_value, ks_p_value
from flatfold.detectors.base import Detector
from flatfold.scoring.calibration import Calibration
from flatfold.scoring.judge import Judge
from flatfold.scoring.monitor import Monitor
from flatfold.scoring.tally import bin_counts, bin_edges
from flatfold.scoring.verdict import Verdict

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


def make_judge(rng, samples=400, fpr=0.1, per_class=False, low=-inf, high=inf):
    score, logits = draw(samples, rng)
    predicted = logits.argmax(dim=-1) if per_class else None
    return Judge(Bounded(low, high), Calibration.of(score, fpr, predicted, CLASSES))


def verdict_of(judge, score, logits):
    return Verdict(logits, score, *judge.calibration(score, logits.argmax(dim=-1)))


def monitor_of(judge, *batches):
    monitor = Monitor.of(judge)
    for score, logits in batches:
        monitor.add(verdict_of(judge, score, logits))
    return monitor


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=[False, True], ids=["together", "per class"])
def judge(request, rng):
    return make_judge(rng, per_class=request.param, low=-9.0, high=9.0)


def test_everything_is_counted_once(judge, rng):
    score, logits = draw(1000, rng, shift=1)
    monitor = monitor_of(judge, (score[:300], logits[:300]), (score[300:], logits[300:]))
    alarm = verdict_of(judge, score, logits).is_ood
    assert (monitor.seen, monitor.alarms) == (1000, int(alarm.sum()))
    assert monitor.alarm_rate == monitor.alarms / 1000
    predicted = logits.argmax(dim=-1) if judge.calibration.per_class else torch.zeros(1000)
    for label, group in enumerate(monitor.groups):
        assert (group.seen, group.alarms) == (int((predicted == label).sum()), int(alarm[predicted == label].sum()))
    edges, stream, calibration = monitor.histogram()
    assert_counts(stream, score.numpy(), edges)
    known = judge.calibration.scores[judge.calibration.scores < inf].numpy()
    assert_counts(calibration, known, edges)


def assert_counts(counts, scores, edges):
    expected = [((low < scores) & (scores <= high)).sum() for low, high in pairwise(edges)]
    assert counts.tolist() == expected
    assert counts.sum() == len(scores)


def test_p_values_are_those_of_the_counts(rng):
    judge = make_judge(rng, samples=199)
    monitor = monitor_of(judge, draw(500, rng, shift=0.1))
    assert monitor.alarm_p_value == alarm_p_value(monitor.alarms, 500, 199, 20)
    assert monitor.drift_p_value == ks_p_value(monitor.drift, 500, 199)


def test_of_several_classes_the_smallest_p_value_counts_as_often_as_classes_were_seen(rng):
    judge = make_judge(rng, per_class=True)
    score, logits = draw(300, rng, shift=0.3)
    logits[:, 1] = -inf  # class 1 is never predicted
    monitor = monitor_of(judge, (score, logits))
    counts = judge.calibration.counts.tolist()
    each = [
        alarm_p_value(group.alarms, group.seen, m, int(0.1 * (m + 1)))
        for group, m in zip(monitor.groups, counts, strict=True)
    ]
    assert [group.p_value for group in monitor.groups] == each
    assert each[1] == 1.0
    assert monitor.alarm_p_value == 2 * min(each) < 1
    assert monitor_of(judge, draw(60, rng, shift=-9)).alarm_p_value == 1.0


def test_drift_is_at_most_the_true_distance_and_nearly_that(judge, rng):
    for shift in (-1, -0.2, 0, 0.2, 1, 5):
        score, logits = draw(800, rng, shift)
        known = judge.calibration.scores[judge.calibration.scores < inf].numpy()
        true = stats.ks_2samp(score.numpy(), known).statistic
        drift = monitor_of(judge, (score, logits)).drift
        assert true - 0.02 < drift <= true + 1e-12


def test_with_a_bin_for_each_calibration_score_drift_is_one_of_the_true_differences(rng):
    judge = make_judge(rng, samples=100)
    score, logits = draw(60, rng, 0.5)
    known = judge.calibration.scores[0].numpy()
    shares = [abs((score.numpy() <= edge).mean() - (known <= edge).mean()) for edge in known]
    assert monitor_of(judge, (score, logits)).drift == pytest.approx(max(shares), abs=1e-12)


@pytest.mark.parametrize("per_class", [False, True])
def test_p_values_are_valid_for_streams_like_the_calibration_data(per_class):
    rng, runs = np.random.default_rng(3), 300
    monitors = [  # each with a calibration of its own: the guarantee is over both draws
        monitor_of(make_judge(rng, per_class=per_class), draw(500, rng)) for _ in range(runs)
    ]
    for level in (0.05, 0.2):
        limit = stats.binom.isf(1e-3, runs, level)
        alarms = sum(monitor.alarm_p_value <= level for monitor in monitors)
        drifts = sum(monitor.drift_p_value <= level for monitor in monitors)
        assert stats.binom.ppf(1e-3, runs, 0.6 * level) <= alarms <= limit
        assert stats.binom.ppf(1e-3, runs, 0.4 * level) <= drifts <= limit


def test_a_shifted_stream_has_small_p_values(judge, rng):
    monitor = monitor_of(judge, draw(1000, rng, shift=1))
    assert monitor.alarm_p_value < 1e-9
    assert monitor.drift_p_value < 1e-9
    lower = monitor_of(judge, draw(1000, rng, shift=-1))  # no alarms, yet not like the calibration data
    assert lower.alarm_p_value > 0.99
    assert lower.drift_p_value < 1e-9


@given(data=st.data(), per_class=st.booleans(), seed=st.integers(0, 2**31))
def test_merging_in_any_order_equals_one_monitor_over_everything(data, per_class, seed):
    rng = np.random.default_rng(seed)
    judge = make_judge(rng, samples=150, fpr=0.2, per_class=per_class, high=6.0)
    batches = [draw(n, rng, shift=0.5) for n in data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))]
    parts = [monitor_of(judge, batch) for batch in data.draw(st.permutations(batches))]
    while len(parts) > 1:
        left, right = parts.pop(data.draw(st.integers(0, len(parts) - 1))), parts.pop()
        if data.draw(st.booleans()):
            left.merge(right)
            parts.append(left)
        else:
            parts.append(right + left)
    whole = monitor_of(judge, *batches)
    assert parts[0].to_dict() == whole.to_dict()
    assert parts[0].alarm_p_value == whole.alarm_p_value


def test_merging_leaves_the_other_and_adding_leaves_both_as_they_were(judge, rng):
    one, two = monitor_of(judge, draw(50, rng)), monitor_of(judge, draw(70, rng))
    before = one.to_dict(), two.to_dict()
    assert (one + two).seen == 120
    assert (one.to_dict(), two.to_dict()) == before
    one.merge(two)
    assert (one.seen, two.to_dict()) == (120, before[1])
    assert sum([one, two], Monitor.of(judge)).seen == 190


def test_it_does_not_grow_with_the_stream(judge, rng):
    monitor = monitor_of(judge, draw(10, rng))
    before = len(pickle.dumps(monitor))
    for _ in range(200):
        monitor.add(verdict_of(judge, *draw(10, rng)))
    assert monitor.seen == 2010
    assert len(pickle.dumps(monitor)) == before < 10_000


def test_a_long_stream_does_not_overflow(judge, rng):
    content = monitor_of(judge, draw(1000, rng)).to_dict()
    for key in ("seen", "alarms", "stream"):
        content[key] = [10**12 * count for count in content[key]]
    monitor = Monitor.from_dict(content)
    twice = monitor + monitor
    assert twice.seen == 2 * 10**15
    assert twice.alarms == 2 * monitor.alarms
    assert twice.drift == monitor.drift
    assert 0 < twice.alarm_p_value <= 1


def test_an_empty_batch_changes_nothing(judge, rng):
    monitor = monitor_of(judge, draw(30, rng))
    before = monitor.to_dict()
    monitor.add(verdict_of(judge, *draw(0, rng)))
    assert monitor.to_dict() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_any_type_and_with_a_gradient_are_counted(rng, dtype):
    judge = make_judge(rng).to(dtype)
    monitor = Monitor.of(judge)
    score, logits = (values.to(dtype).requires_grad_() for values in draw(100, rng))
    monitor.add(verdict_of(judge, score, logits))
    known = judge.calibration.scores[0]
    monitor.add(verdict_of(judge, known, torch.zeros(len(known), CLASSES)))
    assert monitor.seen == 500
    both = torch.cat([score.detach(), known]).double().numpy()
    assert_counts(monitor.histogram().stream, both, monitor.histogram().edges)


def test_low_precision_scores_are_counted(rng):
    judge = make_judge(rng)
    score, logits = draw(50, rng)
    monitor = Monitor.of(judge)
    monitor.add(verdict_of(judge, score, logits)._replace(score=score.bfloat16()))
    assert_counts(monitor.histogram().stream, score.bfloat16().double().numpy(), monitor.histogram().edges)


def test_scores_beyond_the_ends_and_nan_lose_nobody(rng):
    monitor = Monitor.of(make_judge(rng, low=-5.0, high=5.0))
    score = torch.tensor([-5.1, -5.0, 5.0, 5.1, inf, torch.nan], dtype=torch.float64)
    monitor.add(Verdict(torch.zeros(6, CLASSES), score, score, score > 4))
    stream = monitor.histogram().stream
    assert (stream[0], stream[-1], stream.sum()) == (2, 4, 6)


def test_edges_are_quantiles_then_equal_steps_between_the_ends(rng):
    scores = rng.normal(size=12_800)
    edges = bin_edges(scores, -8.0, 20.0)
    assert (edges[0], edges[-1], len(edges)) == (-8.0, 20.0, 2 + 128 + 31)
    assert edges[1:129].tolist() == np.sort(scores)[99::100].tolist()
    assert np.diff(edges[128:]) == pytest.approx((20 - scores.max()) / 32)
    assert bin_counts(scores, edges).tolist() == [100] * 128 + [0] * 32


@pytest.mark.parametrize("samples", [128, 400, 999])
def test_bins_of_known_inputs_are_as_even_as_can_be_and_end_at_the_largest(rng, samples):
    scores = rng.normal(size=samples)
    edges = bin_edges(scores, -inf, inf)
    assert edges[-2] == scores.max()
    counts = bin_counts(scores, edges)[:-1]
    assert len(counts) == 128
    assert counts.max() - counts.min() <= 1


def test_without_an_upper_end_there_is_one_bin_above_the_calibration_scores(rng):
    scores = rng.normal(size=1000)
    edges = bin_edges(scores, -inf, inf)
    assert (edges[0], edges[-2], edges[-1], len(edges)) == (-inf, scores.max(), inf, 130)


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


def test_before_anything_was_seen_there_is_nothing_to_say(judge):
    monitor = Monitor.of(judge)
    assert str(monitor) == "nothing seen yet"
    assert (monitor.seen, monitor.alarms, monitor.alarm_p_value, monitor.drift_p_value) == (0, 0, 1.0, 1.0)
    assert isnan(monitor.alarm_rate)
    assert isnan(monitor.drift)


def filled(judge, seen, alarms):
    """A monitor with given counts, all scores in the uppermost bin."""
    content = Monitor.of(judge).to_dict()
    content["stream"][-1] = sum(seen)
    return Monitor.from_dict({**content, "seen": seen, "alarms": alarms})


def test_text_says_what_was_seen_and_whether_chance_explains_it(rng):
    judge = make_judge(rng, samples=999, fpr=0.05)
    p = alarm_p_value(1380, 12_000, 999, 50)
    assert str(filled(judge, [12_000], [1380])) == (
        f"12,000 inputs, 1,380 alarms: 11.5 %, where 5 % were allowed (p = {p:.2g}: more than chance).\n"
        "Scores differ from calibration by 1 (p < 1e-300: more than chance)."
    )
    assert str(filled(judge, [1], [1])).startswith("1 input, 1 alarm: 100 %, where 5 % were allowed (p = 0.05: no more")
    usual = monitor_of(judge, (judge.calibration.scores[0], torch.zeros(999, CLASSES)))
    lines = str(usual).splitlines()
    assert lines[0].startswith("999 inputs, 49 alarms: 4.9 %")
    assert lines[1] == "Scores differ from calibration by 0 (p = 1: no more than chance explains)."
    assert repr(usual) == "Monitor(999 inputs, 49 alarms)"


def test_text_names_the_class_that_is_most_unusual(rng):
    judge = make_judge(rng, samples=999, fpr=0.05, per_class=True)
    lines = str(filled(judge, [100, 1300, 5], [6, 1200, 0])).splitlines()
    assert lines[2] == "Class 1 is the most unusual: 1,200 of 1,300 inputs raised an alarm."
    assert len(str(filled(judge, [100, 100, 5], [6, 5, 0])).splitlines()) == 2


def test_json_and_files_give_the_same_monitor_back(judge, rng, tmp_path):
    for low, high in ((-9.0, 9.0), (-inf, inf), (0.0, inf)):
        judge.detector.range = low, high
        monitor = monitor_of(judge, draw(200, rng, shift=1))
        again = Monitor.from_dict(json.loads(json.dumps(monitor.to_dict(), allow_nan=False)))
        monitor.save(str(tmp_path / "new" / "monitor.json"))
        for other in (again, Monitor.load(tmp_path / "new" / "monitor.json"), pickle.loads(pickle.dumps(monitor))):  # noqa: S301
            assert other.to_dict() == monitor.to_dict()
            assert str(other) == str(monitor)
            assert (other + monitor).seen == 400
            assert other.histogram().edges.tolist() == monitor.histogram().edges.tolist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["monitor.json"]


def test_a_histogram_is_a_copy(judge, rng):
    monitor = monitor_of(judge, draw(20, rng))
    monitor.histogram().stream[:] = 0
    assert monitor.histogram().stream.sum() == 20


def others(judge):
    """Judges that are not quite the same."""
    scores, counts, fpr = judge.calibration.scores, judge.calibration.counts, judge.calibration.fpr
    low, high = judge.detector.range
    changed = scores.clone()
    changed[0, 5] = (scores[0, 4] + scores[0, 5]) / 2
    return {
        "another rate": judge.at(0.2),
        "another score": Judge(judge.detector, Calibration(changed, counts, fpr)),
        "another range": Judge(Bounded(low, high + 1), judge.calibration),
        "as many thresholds": Judge(judge.detector, judge.calibration.at(fpr + 1e-6)),
    }


@pytest.mark.parametrize("what", ["another rate", "another score", "another range", "as many thresholds"])
def test_monitors_of_different_guards_are_not_merged(judge, what):
    one, two = Monitor.of(judge), Monitor.of(others(judge)[what])
    assert one.yardstick.guard != two.yardstick.guard
    with pytest.raises(ValueError, match=r"monitors are of different guards \(\w{8} at 0.1 and \w{8} at .* Merge mon"):
        one.merge(two)
    with pytest.raises(ValueError, match="are of different guards"):
        two + one


def test_the_identity_of_a_guard_does_not_depend_on_the_process_or_the_type_of_its_rate(judge):
    copy = pickle.loads(pickle.dumps(judge))  # noqa: S301
    copy.calibration.fpr = np.float64(copy.calibration.fpr)
    assert Monitor.of(copy).yardstick == Monitor.of(judge).yardstick


def test_the_same_scores_in_other_classes_are_another_guard():
    first = [torch.arange(40) < size for size in (19, 20)]  # all scores are equal, so the thresholds are too
    guards = [Judge(Bounded(0, 50), Calibration.of(torch.ones(40), 0.1, label.long(), 2)) for label in first]
    assert Monitor.of(guards[0]).yardstick.guard != Monitor.of(guards[1]).yardstick.guard


def test_only_verdicts_are_added_and_only_monitors_merged(judge):
    monitor = Monitor.of(judge)
    with pytest.raises(TypeError, match=r"counts what a guard says, got Tensor. Call monitor.add\(guard\(x\)\)"):
        monitor.add(torch.zeros(3))
    with pytest.raises(TypeError, match=r"can be merged with a monitor, got dict. Read it with"):
        monitor.merge(monitor.to_dict())


def test_a_verdict_with_other_classes_is_refused(rng):
    monitor = Monitor.of(make_judge(rng, per_class=True))
    verdict = Verdict(torch.zeros(2, 5), torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"a guard with 3 classes, the verdict has 5. Add what the guard said"):
        monitor.add(verdict)
    assert monitor.seen == 0


def test_a_batch_that_cannot_be_counted_is_not_counted_in_part(judge, rng):
    monitor = Monitor.of(judge)
    verdict = verdict_of(judge, *draw(5, rng))
    with pytest.raises(IndexError):
        monitor.add(verdict._replace(is_ood=torch.ones(9, dtype=torch.bool)))
    assert (monitor.seen, monitor.histogram().stream.sum()) == (0, 0)


DAMAGE = {
    "no key": (lambda c: c.pop("stream"), "it has no 'stream'"),
    "no edges": (lambda c: c.pop("edges"), "it has no 'edges'"),
    "negative": (lambda c: c["alarms"].__setitem__(0, -1), "'alarms' holds -1, which is no count"),
    "a fraction": (lambda c: c["seen"].__setitem__(0, 2.0), "'seen' holds 2.0, which is no count"),
    "a truth": (lambda c: c["seen"].__setitem__(0, True), "'seen' holds True, which is no count"),
    "too many": (lambda c: c["stream"].__setitem__(0, 2**53), "'stream' counts more than 9007199254740991"),
    "cut short": (lambda c: c["stream"].pop(), r"'stream' is no list of \d+ counts"),
    "another group": (lambda c: c["seen"].append(0), r"'seen' is no list of \d counts"),
    "no list": (lambda c: c.update(known=7), r"'known' is no list of \d+ counts"),
    "an input more": (lambda c: c["stream"].__setitem__(3, c["stream"][3] + 1), "counts of the stream do not add up"),
    "alarms of nobody": (lambda c: c["alarms"].__setitem__(0, 999), "counts of the stream do not add up"),
    "known more": (lambda c: c["known"].__setitem__(0, 99), "counts of the calibration data do not add up"),
    "few calibrated": (lambda c: c.update(fpr=0.001), "counts of the calibration data do not add up"),
    "no groups": (lambda c: c.update(calibrated=[]), "'calibrated' is no list of counts"),
    "groups as a number": (lambda c: c.update(calibrated=400), "'calibrated' is no list of counts"),
    "rate": (lambda c: c.update(fpr=1.5), "'fpr' is 1.5"),
    "rate as text": (lambda c: c.update(fpr="0.1"), "'fpr' is '0.1'"),
    "identity": (lambda c: c.update(guard="me"), "'guard' is no sha256"),
    "equal edges": (lambda c: c["edges"].__setitem__(3, c["edges"][4]), "'edges' do not increase"),
    "edges of nothing": (lambda c: c["edges"].__setitem__(3, None), "'edges' do not increase"),
    "edges that are nan": (lambda c: c["edges"].__setitem__(3, float("nan")), "'edges' do not increase"),
    "one edge": (lambda c: c.update(edges=[0.0]), "'edges' is no list of edges"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_values_are_refused_with_what_is_wrong(judge, rng, what, tmp_path):
    damage, message = DAMAGE[what]
    content = monitor_of(judge, draw(100, rng)).to_dict()
    damage(content)
    with pytest.raises(ValueError, match=f"^this monitor is damaged: .*{message}.* Take an older copy"):
        Monitor.from_dict(content)
    (tmp_path / "monitor.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"monitor.json: this monitor is damaged: .*{message}"):
        Monitor.load(tmp_path / "monitor.json")


@pytest.mark.parametrize("content", [None, [], {}, {"format": "flatfold-results"}, "text"], ids=str)
def test_what_is_no_monitor_is_refused(content):
    with pytest.raises(ValueError, match=r"holds no monitor: its format must be 'flatfold-monitor'. Was it made by"):
        Monitor.from_dict(content)


def test_another_version_is_refused(judge):
    with pytest.raises(ValueError, match=r"has version 2, this flatfold reads version 1. Upgrade"):
        Monitor.from_dict({**Monitor.of(judge).to_dict(), "version": 2})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path, content):
    (tmp_path / "monitor.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"monitor.json is not valid JSON \(.*\). Take an older copy"):
        Monitor.load(tmp_path / "monitor.json")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no monitor at .*nothing.json. Check the path"):
        Monitor.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("per_class", [False, True])
def test_a_guard_makes_one_for_its_verdicts(make_world, per_class):
    world = make_world(per_class=120)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(24, 6))
    with torch.no_grad():
        model[1].weight.copy_(world.head.weight)
        model[1].bias.copy_(world.head.bias)
    batch = world.bank.features, world.bank.labels
    guard = ff.Guard.fit(model, [batch], detector="fold", fpr=0.1, per_class=per_class)
    monitor = guard.monitor()
    verdict = guard(world.unknown)
    monitor.add(verdict)
    assert (monitor.seen, monitor.alarms) == (100, int(verdict.is_ood.sum()))
    assert monitor.drift_p_value < 1e-9
    low, high = guard.detector.score_range()
    assert monitor.histogram().edges[[0, -1]].tolist() == [low, high]
    assert len(monitor.groups) == (6 if per_class else 1)


def test_rows_of_a_table_count_as_the_verdicts_that_they_hold(judge, rng):
    score, logits = draw(500, rng, shift=1)
    verdict = verdict_of(judge, score, logits)
    monitor = Monitor.of(judge)
    for part in (slice(0, 0), slice(0, 200), slice(200, 500)):
        monitor.count(logits.argmax(1).numpy()[part], score.numpy()[part], verdict.is_ood.numpy()[part])
    assert monitor.to_dict() == monitor_of(judge, (score, logits)).to_dict()


def test_a_table_with_other_classes_is_refused_and_nothing_is_counted(rng):
    monitor = Monitor.of(make_judge(rng, per_class=True))
    message = rf"of a guard with {CLASSES} classes, the table has a class 7\. Count the table of the guard that made"
    with pytest.raises(ValueError, match=message):
        monitor.count(np.array([0, 7]), np.array([0.5, 0.5]), np.array([False, True]))
    assert (monitor.seen, monitor.histogram().stream.sum()) == (0, 0)

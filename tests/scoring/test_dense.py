"""`scoring.dense` and `scoring.positions`: guards for every position, and the promise about images."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate
from torch.testing import assert_close

import flatfold as ff
from flatfold import Execution, Guard
from flatfold.data.batch import split_batch
from flatfold.detectors import create
from flatfold.errors import MismatchError
from flatfold.scoring import positions
from flatfold.scoring.calibrated import CalibratedDetector
from flatfold.scoring.dense import DenseGuard, DenseOutputs
from flatfold.scoring.export import FORMATS, compare
from flatfold.scoring.positions import cells_of, draw, fit_positions, order_of_cells, upper_quantile
from tests.architectures import Net
from tests.refusals import refused
from tests.small_scenes import GRID, SIZE, N, batched, fitted, network, scenes


def correlated(n, g, side=8):
    """Return features of images whose pixels differ less from each other than the images do."""
    level = torch.randn(n, 1, 1, 1, generator=g)
    smooth = interpolate(torch.randn(n, 1, 3, 3, generator=g), (side, side), mode="bilinear", align_corners=True)
    noise = 0.1 * torch.randn(n, 2, side, side, generator=g)
    return torch.cat([3 + level + 0.7 * smooth, torch.zeros(n, 1, side, side)], dim=1) + noise


def test_the_mean_share_of_false_alarms_is_bounded_over_draws_of_the_images():
    fpr, redraws, n = 0.05, 250, 44
    model = nn.Sequential(nn.Conv2d(2, 3, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])[:, :, None, None])
        model[0].bias.zero_()
    first = Guard.fit(model, [correlated(n, torch.Generator().manual_seed(999))], method="mls", fpr=fpr)
    shares = []
    for redraw in range(redraws):
        g = torch.Generator().manual_seed(redraw)
        data, new = correlated(n, g), correlated(60, g)
        drawn, pixels = draw(first.network, [split_batch(data)], (), None, redraw)
        result, images = fit_positions(create("mls"), first.network.found.head, drawn, pixels, fpr, redraw)
        guard = DenseGuard(first.network, CalibratedDetector(result.detector, result.calibration), images)
        verdict = guard(new)
        naive = guard(data[: n // 2]).score.flatten().quantile(1 - fpr)  # of pooled pixels
        alarms = (verdict.is_ood, verdict.image_is_ood, verdict.score > naive)
        shares.append(torch.stack([each.double().mean() for each in alarms]))
    mean, error = torch.stack(shares).mean(dim=0), torch.stack(shares).std(dim=0) / redraws**0.5
    assert (mean[:2] <= fpr + 3 * error[:2]).all()
    # The threshold of risk control costs at most 2 / (n + 1) of the rate, the rank of images at most 1 / (n + 1).
    assert mean[0] >= fpr - 2 / 23 - 3 * error[0]
    assert mean[1] >= fpr - 1 / 23 - 3 * error[1]
    assert mean[2] > fpr + 3 * error[2]


def test_a_verdict_has_maps_of_the_size_of_the_logits():
    guard = fitted()
    x, _ = scenes(5, seed=2)
    verdict = guard(x)
    with torch.no_grad():
        assert_close(verdict.logits, guard.model(x))
    for values in verdict[1:]:
        assert values.shape == (5, *SIZE)
    assert verdict.image_p_value.shape == verdict.image_is_ood.shape == (5,)
    assert torch.equal(verdict.is_ood, verdict.p_value <= guard.fpr)
    assert torch.equal(verdict.image_is_ood, verdict.image_p_value <= guard.fpr)
    score, p_value, is_ood = guard.calibrated(guard.network(x).features)
    grid = score.reshape(5, 1, *GRID)
    assert_close(verdict.score, interpolate(grid, SIZE, mode="bilinear", align_corners=False)[:, 0])
    for given, rows in ((verdict.p_value, p_value), (verdict.is_ood, is_ood)):
        near = interpolate(rows.reshape(5, 1, *GRID).double(), SIZE, mode="nearest")[:, 0]
        assert_close(given.double(), near)
    assert torch.equal(verdict.predicted, verdict.logits.argmax(dim=1))
    assert verdict.columns()["share_ood"].shape == (5,)
    assert "DenseVerdict(5 images of 12 x 16, alarms at" in repr(verdict)
    assert "share_ood" in verdict._repr_html_()
    assert "22 calibration images" in repr(guard)


def test_unusual_objects_and_images_raise_alarms():
    guard, (x, _) = fitted("mds"), scenes(6, seed=3)
    x[:, :, 4:8, 4:10] *= 30
    verdict = guard(x)
    assert verdict.is_ood[:, 5:7, 5:9].double().mean() > 0.8
    assert guard(scenes(20, seed=3)[0]).is_ood.double().mean() < 0.25
    assert guard(30 * x).image_is_ood.all()


def test_a_verdict_does_not_depend_on_the_batch():
    guard, (x, masks) = fitted(), scenes(6, seed=4)
    every = guard(x)
    joined = guard(batched(x, masks, 4))
    for given, wanted in zip(joined, every, strict=True):
        assert_close(given, wanted)
    assert_close(joined.image_p_value, every.image_p_value)
    assert_close(guard((x[2:3], masks[2:3])).p_value, every.p_value[2:3])


def test_ignored_positions_are_not_drawn():
    x, masks = scenes()
    masks[:, :, 8:] = 255
    masks[:, 6:] = -100
    masks[:, :2] = 77
    guard = Guard.fit(network(), batched(x, masks), method="msp", fpr=0.1, ignore_index=77)
    drawn, pixels = draw(guard.network, map(split_batch_of_masks, batched(x, masks)), (255, -100, 77), None, 0)
    assert pixels == positions.MOST
    features = guard.network(x).features.reshape(N, *GRID, -1)
    for image, each in enumerate(drawn):
        assert len(each.counted) == 4 * 8
        assert len(each.seen) == 12 * 16
        rows = positions._rows_to_fit(each)[0]
        counted = features[image, 1:3, :4].reshape(-1, 6)
        assert_close(rows, counted)
        assert_close(each.features[each.counted.unique()], counted)


def split_batch_of_masks(batch):
    from flatfold.data.labels import indices_or_masks

    return split_batch(batch, indices_or_masks)


def test_every_image_has_as_many_pixels_and_all_of_them_are_bounded(monkeypatch):
    x, masks = scenes()
    network_of = fitted().network
    monkeypatch.setattr(positions, "POSITIONS", 400)
    drawn, pixels = draw(network_of, map(split_batch_of_masks, batched(x, masks)), (), None, 0)
    assert pixels == 8
    assert {len(each.counted) for each in drawn} == {8}
    assert sum(len(each.features) for each in drawn) <= 400


def test_images_of_several_sizes_come_in_separate_batches():
    sizes = [(12, 16), (10, 10)]
    data = [batch for size in sizes for batch in batched(*scenes(size=size))]
    guard = Guard.fit(network(), data, method="fourfold", fpr=0.1)
    for size in sizes:
        assert guard(scenes(2, size)[0]).is_ood.shape == (2, *size)
    with refused("sizes", "2: 10 x 10, 12 x 16"):
        guard(data)


def test_masks_have_the_size_of_the_logits_or_of_the_image():
    x, masks = scenes()
    small = network(resize=False)
    for given in (masks, masks[:, None], masks[:, ::2, ::2]):
        guard = Guard.fit(small, batched(x, given), method="mds", fpr=0.1)
        assert guard(x).score.shape == (N, *GRID)
    assert guard.fit_result.samples == N
    assert Guard.fit(network(), (x, masks), method="mds", fpr=0.1).fit_result.accuracy > 0.5
    assert Guard.fit(network(), x, method="msp", fpr=0.1).fit_result.accuracy is None


def test_bad_data_is_refused_with_a_sentence():
    x, masks = scenes()
    cases = {
        "12 x 16, the size of the logits, got 12 x 12": masks[:, :, :12],
        "class for each.*one per input.*wrap the model": masks[:, 0, 0],
        "from 0 to 3 or ignored.*got 7, 9": masks.clone()
        .index_fill_(1, torch.tensor([3]), 7)
        .index_fill_(2, torch.tensor([3]), 9),
        "all of them are 255, -100": torch.full_like(masks, 255),
        "several classes.*class 2": torch.full_like(masks, 2),
    }
    for words, labels in cases.items():
        with refused(words, words):
            Guard.fit(network(), batched(x, labels), method="mds", fpr=0.1)
    with refused("some masks", "all batches have labels or none"):
        Guard.fit(network(), [(x[:20], masks[:20]), x[20:]], method="mds", fpr=0.1)
    with refused("too few", "takes 99 calibration samples, half of the images has 22"):
        Guard.fit(network(), batched(x, masks), fpr=0.01)
    for name, value in {"per_class": True, "confidence": 0.9, "groups": [0] * N}.items():
        with refused(name, f"takes no {name}="):
            Guard.fit(network(), batched(x, masks), fpr=0.1, **{name: value})
    again = (batched(x, masks), batched(x, masks))
    with refused("same images", "data that the detector was fitted on"):
        Guard.fit(network(), again[0], method="mds", fpr=0.1, calibration=again[1])
    with refused("runtime", "every position.*onnx"):
        Guard.fit(network(), batched(x, masks), fpr=0.1, execution=Execution(runtime="onnx"))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 16, 3))
    with refused("a classifier of images", "one row of logits per input"):
        Guard.fit(plain, [x], method="msp", fpr=0.1, ignore_index=0)
    with refused("masks for a classifier", "one per feature row"):
        Guard.fit(plain, batched(x, masks), method="msp", fpr=0.1)


def test_copies_of_images_are_counted_once():
    x, masks = scenes(30)
    guard = Guard.fit(network(), batched(torch.cat([x, x]), torch.cat([masks, masks])), method="msp", fpr=0.1)
    assert guard.fit_result.copies == 30
    assert guard.calibration.samples == 15


def test_other_images_can_be_given_to_calibrate_on(monkeypatch):
    data, others = scenes(30), scenes(25, seed=2)
    others[1][:, :, 6:] = 255  # the number of an image is that of all of its pixels
    few = Guard.fit(network(), batched(*data), method="mds", fpr=0.05, calibration=batched(*others))
    assert (few.calibration.samples, few.fit_result.samples) == (25, 30)
    grid = few.calibrated(few.network(others[0]).features)[0].reshape(25, -1)
    number = torch.stack([upper_quantile(each.repeat_interleave(4), 0.95) for each in grid])
    assert_close(few.images.calibration.scores[0], number.sort().values, rtol=1e-3, atol=1e-3)
    assert (few.images.calibration.scores[0] > number.sort().values).all(), "by what rounding may add"
    mixed = (torch.cat([data[0][:5], others[0]]), torch.cat([data[1][:5], others[1]]))
    assert (
        Guard.fit(network(), batched(*data), method="mds", fpr=0.05, calibration=batched(*mixed)).calibration.samples
        == 25
    )
    monkeypatch.setattr(positions, "POSITIONS", 400)
    assert Guard.fit(network(), batched(*data), method="mds", fpr=0.05, calibration=batched(*others)).images.pixels == 8


def test_a_file_holds_a_guard_for_every_position(tmp_path):
    guard, (x, _) = fitted(), scenes(5, seed=2)
    guard.save(tmp_path / "guard.safetensors")
    again = Guard.load(tmp_path / "guard.safetensors", network())
    assert isinstance(again, DenseGuard)
    for given, wanted in zip(again(x), guard(x), strict=True):
        assert torch.equal(given, wanted)
    assert torch.equal(again(x).image_p_value, guard(x).image_p_value)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "guard.safetensors").read_bytes()
    other = network()
    torch.nn.init.normal_(other.head.weight)
    with refused("other weights", "other weights"):
        Guard.load(tmp_path / "guard.safetensors", other)


def test_another_rate_keeps_scores_and_numbers():
    guard, (x, _) = fitted(), scenes(40, seed=2)
    other = guard.at(0.3)
    assert torch.equal(other(x).p_value, guard(x).p_value)
    assert torch.equal(other(x).is_ood, guard(x).p_value <= 0.3)
    assert torch.equal(other(x).image_is_ood, guard(x).image_p_value <= 0.3)
    assert other(x).image_is_ood.sum() > guard(x).image_is_ood.sum()


def test_an_overlay_is_a_picture_with_the_alarms_in_red():
    guard, (x, _) = fitted("mds"), scenes(1, seed=2)
    x[:, :, 4:8, 4:10] *= 30
    assert guard(x).is_ood.any()
    picture = guard.overlay(x[0])
    assert isinstance(picture, Image.Image)
    low, high = x.min(), x.max()
    plain = (255 * (x[0] - low) / (high - low)).movedim(0, -1)
    red = (plain + torch.tensor([220.0, 38.0, 38.0])) / 2
    wanted = torch.where(guard(x).is_ood[0][..., None], red, plain)
    assert_close(torch.from_numpy(np.array(picture)).float(), wanted, atol=1, rtol=0)
    guard.transform = ff.Transform(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    quiet = torch.zeros(3, *SIZE)
    assert np.array(guard.overlay(quiet))[~guard(quiet[None]).is_ood[0].numpy()].mean() in (127, 127.5, 128)
    with refused("two images", "one image"):
        guard.overlay(scenes(2)[0])


def test_a_monitor_counts_images_and_the_share_of_their_positions():
    guard, (x, _) = fitted("mds"), scenes(30, seed=5)
    x[:12, :, 4:9, 4:11] *= 30
    verdict = guard(x)
    whole, parts = guard.monitor(x), guard.monitor() + guard.monitor(x[:7])
    parts.add(guard(x[7:]))
    assert parts.to_dict() == whole.to_dict() == type(whole).from_dict(whole.to_dict()).to_dict()
    assert (whole.seen, whole.alarms) == (30, int(verdict.image_is_ood.sum()))
    assert abs(whole.share_ood - float(verdict.is_ood.double().mean())) < 1e-6
    assert whole.alarm_p_value < 0.01  # of images; positions of one image are not independent
    assert whole.drift_p_value < 0.01
    assert "of the positions of an image" in str(whole)
    usual = guard.monitor(scenes(30, seed=6)[0])
    assert usual.alarm_p_value > 0.01
    assert guard.monitor().share_ood != guard.monitor().share_ood  # NaN
    plain = Guard.fit(nn.Sequential(nn.Flatten(), nn.Linear(576, 3)), x, method="msp", fpr=0.1)
    assert plain.monitor(x).share_ood is None
    with refused("a verdict on positions", "a guard for whole inputs, but the verdict is about every position"):
        plain.monitor().add(verdict)
    with refused("a verdict on inputs", "a guard for every position, but the verdict is about whole inputs"):
        guard.monitor().add(plain(x))


def test_a_single_logit_has_two_classes_at_every_position():
    x, _ = scenes()
    guard = Guard.fit(network(outputs=1), [x], method="msp", fpr=0.1)
    verdict = guard(x[:3])
    with torch.no_grad():
        z = guard.model(x[:3])
    assert_close(verdict.logits, torch.cat([-z / 2, z / 2], dim=1))
    assert verdict.is_ood.shape == (3, *SIZE)


def tagger():
    torch.manual_seed(0)
    return Net(
        lambda m, x, attention_mask: m.head(torch.tanh(m.body(x)) * attention_mask[..., None]),
        body=nn.Linear(5, 8),
        head=nn.Linear(8, 3),
    ).eval()


def sentences(n=50, tokens=9, seed=1):
    g = torch.Generator().manual_seed(seed)
    mask = (torch.arange(tokens) < torch.randint(3, tokens + 1, (n, 1), generator=g)).long()
    return {"x": torch.randn(n, tokens, 5, generator=g), "attention_mask": mask}


def test_padding_of_texts_does_not_count():
    model, data = tagger(), sentences()
    with torch.no_grad():
        labels = model(**data).argmax(dim=-1).where(data["attention_mask"] == 1, -100)
    guard = Guard.fit(model, [data | {"labels": labels}], method="mds", fpr=0.1)
    few = sentences(6, seed=2)
    verdict = guard(few)
    padding = few["attention_mask"] == 0
    assert verdict.is_ood.shape == (6, 9)
    assert verdict.logits.shape == (6, 9, 3)
    assert (verdict.p_value[padding] == 1).all()
    assert not verdict.is_ood[padding].any()
    assert torch.equal(verdict.predicted, verdict.logits.argmax(dim=-1))
    for row in range(6):
        own = verdict.score[row][~padding[row]].sort(descending=True).values
        number = own[-(-len(own) // 10) - 1]  # at most a tenth of the tokens is above it
        p_value = (1 + (guard.images.calibration.scores[0] >= number).sum()) / 26
        assert_close(verdict.image_p_value[row], p_value)
    assert "6 texts of 9" in repr(verdict)


def test_scores_of_drawn_pixels_have_the_quantile_by_hand():
    scores = torch.tensor([3.0, 1.0, 2.0, torch.nan])
    assert upper_quantile(scores[:3], 0.5) == 2.0
    assert upper_quantile(scores, 0.9) == torch.inf
    assert upper_quantile(scores[:0], 0.5) == torch.inf
    assert torch.equal(cells_of((2, 3), (3, 3)), torch.tensor([0, 1, 2, 0, 1, 2, 3, 4, 5]))


def test_a_module_returns_the_verdict_and_can_be_compiled():
    guard, (x, _) = fitted("mds"), scenes(6, seed=2)
    x[:2, :, 4:9, 4:11] *= 30
    verdict, outputs = guard(x), guard.as_module()(x)
    wanted = (*verdict, verdict.image_score, verdict.image_p_value, verdict.image_is_ood)
    for given, each in zip(outputs, wanted, strict=True):
        assert torch.equal(given, each)
    compiled = torch.compile(guard.as_module(), backend="eager")(x)
    for given, each in zip(compiled, wanted, strict=True):
        assert torch.equal(given, each)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_an_exported_graph_has_the_maps_of_the_guard(tmp_path, suffix):
    guard, (x, _) = fitted("mds"), scenes(6, seed=2)
    x[:2, :, 4:9, 4:11] *= 30
    path = tmp_path / f"guard{suffix}"
    order_of_cells.cache_clear()  # as in a new process, in which the graph is traced before anything else runs
    parity = guard.export(path, x)
    assert (parity.inputs, parity.batch_sizes) == (6, (1, 6))
    verdict = guard(x[:3])
    assert verdict.is_ood.any()
    outputs = FORMATS[suffix].open(path)(split_batch(x[:3]))
    for name, given in zip(DenseOutputs._fields, outputs, strict=True):
        assert_close(torch.as_tensor(given), getattr(verdict, name), rtol=1e-4, atol=1e-5)
    guard.calibrated.calibration.threshold += 0.5  # a graph that decides in another way is not written
    with refused("other decisions", "does not reproduce the is_ood", MismatchError):
        compare(guard, FORMATS[suffix].open(path), split_batch(x))


def test_a_graph_of_tokens_knows_their_padding(tmp_path):
    guard, few = Guard.fit(tagger(), [sentences()], method="msp", fpr=0.1), sentences(6, seed=2)
    path = tmp_path / "guard.pt2"
    guard.export(path, few)
    outputs = dict(zip(DenseOutputs._fields, FORMATS[".pt2"].open(path)(split_batch(few)), strict=True))
    assert not outputs["is_ood"][few["attention_mask"] == 0].any()
    assert_close(outputs["image_p_value"], guard(few).image_p_value)

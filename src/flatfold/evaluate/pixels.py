"""Evaluate methods on the pixels of images with masks.

Methods are fitted on positions drawn from the training images, as guards are (:mod:`flatfold.scoring.positions`). The
test images then run through the network once, a part at a time, and every method scores their positions; scores are
brought to the size of the masks like those of a guard. Histograms (:mod:`flatfold.core.histograms`) and drawn positions
are kept, some kilobytes per image. Finished parts are stored, and an interrupted run resumes with the others.

Intervals are over images. More than ``CLUSTERS`` images of a data set are resampled in that many groups.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.bank import FeatureBank
from ..core.bootstrap import draws, percentile_interval
from ..core.histograms import (
    COARSE,
    METRICS,
    bin_edges,
    coarsen,
    count_scores,
    histogram_metrics,
    influence_of_images,
    resampled_metrics,
    rounding,
)
from ..core.intervals import Influence, interval, mean_influence
from ..core.validation import check_finite
from ..data.batch import Batch
from ..data.sources import ImageSource, Source, read_batches
from ..detectors import get_method
from ..detectors.base import Detector
from ..errors import MethodRefusedError
from ..io.progress import track
from ..io.store import PartStore
from ..network.calls import evaluating
from ..network.heads import DensePass
from ..network.network import Network
from ..passes.extract import check_share, first_inputs, warn_unreadable
from ..passes.passes import cut
from ..scoring.positions import Drawn, draw, scores_of, smooth
from .banks import Banks, Settings, short_key
from .compare import compare_with_best
from .methods import PACKAGE, FeatureData, Fitted, Spec, fit_method, method_run
from .results import ID, OPENOOD, PAPER, Average, Certainty, MethodRun, Overlay, Row, columns_of
from .suites.suite import Suite

ROWS = 16_000  # drawn positions of a data set that methods learn from
PART = 64  # images in a part
CLUSTERS = 1000  # groups of images that are resampled
MEANS = ("auroc", "fpr95_ood_positive", "aupr_out")  # metrics of single images, whose means are reported
DRAWN_METHODS = 3  # the best methods, whose scores are drawn on images
EXTREMES = 2  # the best and the worst images of a data set
SIDE = 240  # pixels of the longer side of a picture
HEAT, EDGE = (220, 38, 38), (0, 200, 255)  # colours of high scores and of the border of OOD pixels
DECADES = 3.0  # powers of ten below a share of 1 of the ID pixels at which the colour is full

log = logging.getLogger(__name__)


class Positions(NamedTuple):
    """The network of a suite, drawn positions of every data set, and the images that could not be read."""

    network: Network
    banks: Banks
    unreadable: dict[str, dict[int, str]]


@dataclass(frozen=True, eq=False)
class Counted:
    """The pixels of a data set by their score: histograms of all images and of groups of images.

    ``means`` holds metrics of single images by name, NaN for an image without pixels of both classes.
    """

    pooled: NDArray[np.int64]
    groups: NDArray[np.int64]
    means: dict[str, NDArray[np.float64]]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of all pixels."""
        return {name: float(value) for name, value in histogram_metrics(*self.pooled).items()}


@dataclass(frozen=True, eq=False)
class PixelResult:
    """A method, and its pixels by data set."""

    fitted: Fitted
    edges: NDArray[np.float32]
    seconds_per_position: float
    counted: dict[str, Counted]

    @property
    def run(self) -> MethodRun:
        """The settings and costs of the method."""
        return method_run(self.fitted, self.seconds_per_position)


def draw_positions(suite: Suite, settings: Settings) -> Positions:
    """Find the network's head and draw positions from the images of every data set."""
    if settings.execution.distributed:
        raise ValueError("pixels are scored by this process only, not on Ray. Set engine to local.")
    model, device, unreadable = suite.model, settings.device, dict[str, dict[int, str]]()
    first, _ = first_inputs(suite.test)
    with evaluating(model, device) as place:
        network, _ = Network.of(model, first.to(place), settings.execution.here())
    if not network.dense:
        raise ValueError(
            f"the images of {suite.name} have masks, but the model has one row of logits per image: "
            f"{network.found.relation}. Give a segmentation network, or remove masks = from the suite."
        )
    banks = dict[str, FeatureBank]()
    for number, (name, source) in enumerate(track(suite.sources.items(), "drawing positions", len(suite.sources))):
        labelled = name in ("train", "val", "test")
        reasons = unreadable.setdefault(name, {})
        try:
            batches = _batches(source, settings, reasons, labelled)
            drawn, _ = draw(network, batches, suite.ignored, device, suite.seed + number)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
        banks[name] = bank_of(drawn)
        warn_unreadable(reasons, source)
    train = banks.get("train")
    return Positions(
        network,
        Banks(
            network.found.head,
            None if train is None else train.sharing_moments(),
            banks.get("val"),
            banks["test"],
            {ood.name: banks[ood.name] for ood in suite.ood},
            unreadable={name: reasons for name, reasons in unreadable.items() if reasons},
            runtime=network.runtime.name,
        ),
        unreadable,
    )


def _batches(source: Source, settings: Settings, reasons: dict[int, str], labelled: bool) -> Iterator[Batch]:
    """Yield the batches of a source, with masks if ``labelled``; add unreadable images to ``reasons``."""
    for read in read_batches(source, workers=settings.loading.workers):
        reasons |= read.unreadable
        check_share(reasons, source, settings.loading.max_unreadable)
        if read.batch is not None:
            yield read.batch if labelled else read.batch._replace(labels=None)


def bank_of(drawn: Sequence[Drawn]) -> FeatureBank:
    """Return at most ``ROWS`` of the drawn positions, equally many pixels of every image, whose labels count."""
    parts = [each.thin(max(1, ROWS // len(drawn))) for each in drawn]
    rows = [torch.unique(each.counted) for each in parts]
    rows = [
        kept if each.labels is None else kept[each.labels[kept] >= 0] for each, kept in zip(parts, rows, strict=True)
    ]
    features = torch.cat([each.features[kept] for each, kept in zip(parts, rows, strict=True)])
    labels = [each.labels[kept] for each, kept in zip(parts, rows, strict=True) if each.labels is not None]
    return FeatureBank(features, torch.cat(labels) if labels else None)


def fit_on_positions(spec: Spec, positions: Positions) -> tuple[Fitted, NDArray[np.float32]]:
    """Fit a method and return it with the edges of the bins of its scores."""
    if get_method(spec.name).sees != "features":
        raise MethodRefusedError("their scores are of whole images, not of pixels.")
    fitted = fit_method(spec, FeatureData(positions.banks), positions.banks)
    detector = fitted.detector
    assert isinstance(detector, Detector)
    with torch.no_grad():
        sample = [scores_of(detector.eval(), bank.features) for bank in positions.banks.test_sets.values()]
    for name, scores in zip(positions.banks.test_sets, sample, strict=True):
        check_finite(scores[:, None], f"scores of {name}")
    return fitted, bin_edges(torch.cat(sample).numpy())


def pixel_store(folder: Path, key: Mapping[str, str]) -> PartStore:
    """Return the store of the parts that a run with this network, data and settings has finished."""
    return PartStore(folder / f"pixels-{short_key(*key.values())}", {"data": "scores", **key})


def score_pixels(
    suite: Suite,
    positions: Positions,
    methods: Mapping[str, tuple[Fitted, NDArray[np.float32]]],
    settings: Settings,
    store: PartStore,
) -> tuple[list[PixelResult], dict[str, Exception]]:
    """Score the pixels of all test images with all methods; return the errors of methods that fail."""
    failed, seconds = dict[str, Exception](), dict.fromkeys(methods, (0.0, 0))
    parts = {name: list(cut(source, [range(source.rows)], PART).values()) for name, source in _test_sets(suite).items()}
    done = {label for label, (fitted, _) in methods.items() if _is_ours(fitted)}
    with evaluating(suite.model, settings.device) as device:
        for dataset, rows in track(
            [(name, rows) for name, ranges in parts.items() for rows in ranges], "scoring pixels", _number(parts)
        ):
            missing = {
                label: _Part(*methods[label], label)
                for label in methods
                if label not in failed and not (label in done and _part_name(label, dataset, rows) in store)
            }
            if not missing:
                continue
            source = _test_sets(suite)[dataset]
            anomalies = next((ood.anomalies for ood in suite.ood if ood.name == dataset), ())
            for read in read_batches(source, source.batch_ranges([rows]), workers=settings.loading.workers):
                if read.batch is None:
                    continue
                result = positions.network.runtime(read.batch.to(device))
                assert isinstance(result, DensePass)
                check_finite(result.features, "features", first=read.rows.start)
                kinds = pixel_kinds(read.batch, result, anomalies, suite.ignored)
                for label, part in list(missing.items()):
                    try:
                        part.add(result, kinds)
                    except Exception as error:
                        failed[label] = error
                        del missing[label]
            for label, part in missing.items():
                spent, scored = seconds[label]
                seconds[label] = spent + part.seconds, scored + part.positions
                store.write(
                    _part_name(label, dataset, rows),
                    part.tensors(),
                    {"seconds": part.seconds, "positions": part.positions},
                )
    results = []
    for label, (fitted, edges) in methods.items():
        if label in failed:
            continue
        joined, spent, scored = {}, 0.0, 0
        for dataset, ranges in parts.items():
            joined[dataset], its_seconds, its_positions = _join(
                store, [_part_name(label, dataset, rows) for rows in ranges]
            )
            spent, scored = spent + its_seconds, scored + its_positions
        results.append(PixelResult(fitted, edges, spent / max(scored, 1), joined))
    return results, failed


def _test_sets(suite: Suite) -> dict[str, Source]:
    return {ID: suite.test} | {ood.name: ood.images for ood in suite.ood}


def _number(parts: Mapping[str, Sequence[range]]) -> int:
    return sum(map(len, parts.values()))


def _is_ours(fitted: Fitted) -> bool:
    """Return whether a method is part of flatfold; that of a user may have changed since a part was stored."""
    return get_method(fitted.spec.name).factory.__module__.startswith(f"{PACKAGE}.")


def _part_name(label: str, dataset: str, rows: range) -> str:
    return f"{short_key(label, dataset)}-{rows.start}-{rows.stop}"


def pixel_kinds(batch: Batch, result: DensePass, anomalies: Sequence[int], ignored: Sequence[int]) -> NDArray[np.int8]:
    """Return the kind of every pixel ``(n, H, W)``: 0 for ID, 1 for OOD, -1 where it does not count."""
    masks = batch.labels
    assert masks is not None
    given, image = tuple(masks.shape[1:]), tuple(batch.first_tensor.shape[-2:])
    if given not in (image, result.size):
        raise ValueError(
            f"a mask must have the size of its image, {' x '.join(map(str, image))}, got "
            f"{' x '.join(map(str, given))}. Resize the masks with nearest neighbour, as the images."
        )
    kinds = np.isin(masks.numpy(), anomalies).astype(np.int8)
    kinds[np.isin(masks.numpy(), ignored)] = -1
    return kinds


def score_maps(detector: Detector, result: DensePass, size: Sequence[int]) -> NDArray[np.float32]:
    """Return the scores of a batch at the size of its masks, ``(n, *size)``, as a guard does."""
    with torch.no_grad():
        scores = scores_of(detector, result.features).float().reshape(result.grid)
    values: NDArray[np.float32] = smooth(scores, tuple(size)).cpu().numpy()
    if np.isnan(values).any():
        check_finite(torch.from_numpy(values).flatten()[:, None], "scores")
    return values


class _Part:
    """What is counted of a part of a data set for one method."""

    def __init__(self, fitted: Fitted, edges: NDArray[np.float32], label: str) -> None:
        assert isinstance(fitted.detector, Detector)
        self.detector, self.edges, self.label = fitted.detector, edges, label
        self.pooled = np.zeros((2, len(edges) + 1), np.int64)
        self.images: list[NDArray[np.int32]] = []
        self.means: list[list[float]] = []
        self.seconds, self.positions = 0.0, 0

    def add(self, result: DensePass, kinds: NDArray[np.int8]) -> None:
        """Count the pixels of a batch."""
        start = perf_counter()
        maps = score_maps(self.detector, result, kinds.shape[1:])
        self.seconds += perf_counter() - start
        self.positions += len(result.features)
        for scores, kind in zip(maps, kinds, strict=True):
            counts = count_scores(scores[kind >= 0], kind[kind >= 0] == 1, self.edges)
            self.pooled += counts.astype(np.int64)
            self.images.append(coarsen(counts).astype(np.int32))
            known, unknown = counts[:, counts.any(axis=0)]  # bins without a pixel change no metric
            self.means.append([float(value) for value in histogram_metrics(known, unknown, MEANS).values()])

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts as the tensors of a part."""
        images = np.stack(self.images) if self.images else np.zeros((0, 2, COARSE), np.int32)
        means = np.array(self.means, np.float64).reshape(-1, len(MEANS))
        arrays = {"pooled": self.pooled, "images": images, "means": means}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _join(store: PartStore, names: Sequence[str]) -> tuple[Counted, float, int]:
    """Return the sums of parts, and the seconds and positions that they took."""
    pooled, groups = np.zeros(1, np.int64), np.zeros((CLUSTERS, 2, COARSE), np.int64)
    means, seconds, positions, rows = [], 0.0, 0, 0
    for name in names:
        info, tensors = store.read(name)
        pooled = pooled + tensors["pooled"].numpy()
        images = tensors["images"].numpy()
        np.add.at(groups, np.arange(rows, rows + len(images)) % CLUSTERS, images)
        rows += len(images)
        means.append(tensors["means"].numpy())
        seconds, positions = seconds + info["seconds"], positions + info["positions"]
    columns = np.concatenate(means).T
    counted = Counted(pooled, groups[: min(rows, CLUSTERS)], dict(zip(MEANS, columns, strict=True)))
    return counted, seconds, positions


def tabulate_pixels(
    results: Sequence[PixelResult], suite: Suite, replicates: int
) -> tuple[list[Row], list[Average], dict[str, float]]:
    """Return the metrics of pixels with intervals over images, and the largest error of the histograms by metric.

    AUROC has the interval of its cluster-robust variance on the logit scale, the other metrics have bootstrap
    intervals; all methods are compared on the same resampled images.
    """
    groups = {ood.name: ood.group for ood in suite.ood}
    columns = columns_of(groups)
    for dataset in groups:
        known, unknown = results[0].counted[dataset].pooled.sum(axis=1)
        if not known or not unknown:
            values = next(list(ood.anomalies) for ood in suite.ood if ood.name == dataset)
            what = "ID" if not known else f"OOD (of value {', '.join(map(str, values))})"
            raise ValueError(
                f"{dataset}: no pixel of its masks is {what}. Set anomalies = to the values of OOD pixels."
            )
    influences: dict[str, dict[str, Influence]] = {column: {} for column in columns}
    redrawn: dict[tuple[str, str], dict[str, NDArray[np.float64]]] = {}
    bounds = dict.fromkeys(METRICS, 0.0)
    for result in track(results, "resampling images", len(results)):
        label = result.fitted.spec.label
        single = {}
        for dataset in groups:
            counted = result.counted[dataset]
            for name, value in rounding(*counted.pooled).items():
                bounds[name] = max(bounds[name], value)
            single[dataset] = influence_of_images(counted.groups)
            if replicates:
                rng = np.random.default_rng([suite.seed, *dataset.encode()])
                drawn = draws(len(counted.groups), replicates, rng)
                redrawn[label, dataset] = _centred(counted, resampled_metrics(counted.groups, drawn, METRICS[1:]))
        for column, members in columns.items():
            influences[column][label] = mean_influence([single[dataset] for dataset in members])
    rows, averages = [], []
    for result in results:
        run = result.run
        for column, members in columns.items():
            figures = {name: fmean(result.counted[d].metrics[name] for d in members) for name in METRICS}
            it = influences[column][run.method]
            low, high = interval(it.auroc, it.stderr, it.pairs, it.pairs)
            intervals = {"auroc": (min(low, figures["auroc"]), max(high, figures["auroc"]))}
            for name in METRICS[1:] if replicates else ():
                means = np.mean([redrawn[run.method, dataset][name] for dataset in members], axis=0)
                intervals[name] = percentile_interval(figures[name], means[np.isfinite(means)].clip(0, 1))
            certainty = Certainty(intervals, *compare_with_best(run.method, influences[column]))
            if column in groups:
                counted = result.counted[column]
                over = {name: values[np.isfinite(values)] for name, values in counted.means.items()}
                n_id, n_ood = (int(count) for count in counted.pooled.sum(axis=1))
                its: dict[str, Any] = {**figures, "n_id": n_id, "n_ood": n_ood, "certainty": certainty}
                its["over_images"] = {name: float(values.mean()) for name, values in over.items() if len(values)}
                rows.append(Row(run.method, run.tuned_on, column, groups[column], **its))
            else:
                as_in = PAPER if column == "all" else OPENOOD
                averages.append(Average(run.method, run.tuned_on, column, as_in, **figures, certainty=certainty))
    return rows, averages, bounds


def _centred(counted: Counted, redrawn: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return resampled metrics, shifted by the difference between the metric of all bins and that of coarse bins."""
    coarse = histogram_metrics(*counted.groups.sum(axis=0))
    return {name: values + counted.metrics[name] - float(coarse[name]) for name, values in redrawn.items()}


def histograms_of(results: Sequence[PixelResult]) -> dict[str, NDArray[np.int64]]:
    """Return the coarse histograms for a result file."""
    return {
        f"{result.fitted.spec.label}/{dataset}": coarsen(counted.pooled).astype(np.int64)
        for result in results
        for dataset, counted in result.counted.items()
    }


def draw_overlays(
    suite: Suite, positions: Positions, results: Sequence[PixelResult], rows: Sequence[Average], settings: Settings
) -> tuple[list[Overlay], dict[str, NDArray[np.uint8]]]:
    """Return the best and the worst images of every data set for the best methods, and their pictures."""
    means = {mean.method: mean.auroc for mean in rows if mean.over == "all"}
    best = sorted(results, key=lambda result: -means[result.fitted.spec.label])[:DRAWN_METHODS]
    overlays, pictures = list[Overlay](), dict[str, NDArray[np.uint8]]()
    for ood in suite.ood:
        source = ood.images
        if not isinstance(source, ImageSource):
            continue
        unreadable = positions.unreadable.get(ood.name, {})
        readable = np.array([row for row in range(source.rows) if row not in unreadable])
        for result in best:
            label, values = result.fitted.spec.label, result.counted[ood.name].means["auroc"]
            order = np.argsort(-values, kind="stable")
            order = order[np.isfinite(values[order])]
            chosen = dict.fromkeys(order[:EXTREMES].tolist()) | dict.fromkeys(order[-EXTREMES:][::-1].tolist())
            for place in chosen:
                row = int(readable[place])
                name = source.name(row)
                shown = _picture(suite, ood.anomalies, positions, result, source, row, settings)
                key = f"{ood.name}/{row}"
                pictures[key], pictures[f"{label}/{key}"] = shown
                is_best = place in order[:EXTREMES]
                overlays.append(Overlay(label, ood.name, row, name, float(values[place]), is_best))
    return overlays, pictures


def _picture(
    suite: Suite,
    anomalies: Sequence[int],
    positions: Positions,
    result: PixelResult,
    source: ImageSource,
    row: int,
    settings: Settings,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image with the border of its OOD pixels, and the same with the scores of a method."""
    (read,) = read_batches(source, [range(row, row + 1)], workers=0)
    assert read.batch is not None
    assert isinstance(result.fitted.detector, Detector)
    with evaluating(suite.model, settings.device) as device:
        output = positions.network.runtime(read.batch.to(device))
        assert isinstance(output, DensePass)
        kinds = pixel_kinds(read.batch, output, anomalies, suite.ignored)[0]
        scores = score_maps(result.fitted.detector, output, kinds.shape)[0]
    colours = source.transform.pixels(source.picture(row)[1])
    colours = np.broadcast_to(colours, (*colours.shape[:2], 3))
    scale = SIDE / max(colours.shape[:2])
    size = tuple(max(1, round(side * min(1.0, scale))) for side in colours.shape[1::-1])
    shown = np.asarray(Image.fromarray(colours).resize(size, Image.Resampling.LANCZOS)).astype(np.float64)
    ood = np.asarray(Image.fromarray((kinds == 1).astype(np.uint8)).resize(size, Image.Resampling.NEAREST)) > 0
    id_pixels = result.counted[ID].pooled[0]
    above = id_pixels[::-1].cumsum()[::-1] / id_pixels.sum()  # the share of ID pixels in this bin or a higher one
    share = np.maximum(above[np.searchsorted(result.edges, scores)], 10**-DECADES)
    heat = Image.fromarray((-np.log10(share) / DECADES * 255).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR)
    grey = 0.35 * 255 + 0.65 * shown.mean(axis=2, keepdims=True)
    weight = 0.9 * (np.asarray(heat)[..., None] / 255) ** 1.5
    hot = (1 - weight) * grey + weight * np.array(HEAT)
    pictures = []
    for picture in (shown.copy(), hot):
        picture[_border(ood)] = EDGE
        pictures.append(picture.clip(0, 255).round().astype(np.uint8))
    return pictures[0], pictures[1]


def _border(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the pixels just outside of a region."""
    padded = np.pad(inside, 1)
    near = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
    return near & ~inside


def values_of(suite: Suite) -> str:
    """Return the meaning of the values of masks, on which the counts depend."""
    return repr([suite.ignored, {ood.name: ood.anomalies for ood in suite.ood}])

"""Guards for models with logits at every position: segmentation networks and classifiers of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..core.hessian import row_chunks
from ..core.validation import check_finite
from ..data.batch import Batch, is_batch
from ..data.loading import Loading
from ..detectors.base import Detector
from ..display.numbers import count, rate
from ..network.execution import Execution
from ..network.graph import copy_around_memory
from ..network.heads import DensePass
from ..network.network import Network
from ..passes.extract import EveryPositionError, labelled_batches
from .calibrated import CalibratedDetector, Verdict, check_rate
from .fitting import FitResult
from .guard import Guard, GuardModule
from .guard_file import save_guard
from .monitor import Monitor
from .positions import AT_ONCE, IGNORED, Drawn, Images, at_size, draw, drawn_cells, fit_positions, smooth
from .regions import Regions, find_regions

ALARM = (220, 38, 38)  # the colour of an alarm in a picture
SHARE = 0.5  # of that colour in the picture


class DenseVerdict(Verdict):
    """What a guard says about every position of a batch of images, or about every token of texts.

    The maps have the size of the model's logits. ``score`` is brought to it like the logits of most models, bilinear;
    ``p_value`` and ``is_ood`` are those of the nearest position of the layer, so that the promise holds for pixels.

    Attributes:
        logits: ``(n, c, H, W)``, as the model gives them, or ``(n, T, c)`` for tokens.
        score: ``(n, H, W)`` or ``(n, T)``, higher = more out-of-distribution.
        p_value: Likewise; how unusual the score is among the positions of ID images. Padding has 1.
        is_ood: Likewise, bool, True at positions with an alarm. Padding has none.
    """

    _image_score: Tensor
    _image_p_value: Tensor
    _image_is_ood: Tensor
    _fpr: float | None = None
    _channels_last: bool = False

    @classmethod
    def of(cls, maps: Iterable[Tensor], images: Sequence[Tensor], fpr: float | None, channels_last: bool) -> Self:
        """Create the verdict with these maps, and scores, p-values and decisions of whole images."""
        verdict = cls(*maps)
        verdict._image_score, verdict._image_p_value, verdict._image_is_ood = images
        verdict._fpr, verdict._channels_last = fpr, channels_last
        return verdict

    @property
    def image_score(self) -> Tensor:
        """``(n,)``, the score of an image as a whole: a high quantile of those of its positions."""
        return self._image_score

    @property
    def image_p_value(self) -> Tensor:
        """``(n,)``, how unusual an image is as a whole among ID images: small = unusual."""
        return self._image_p_value

    @property
    def image_is_ood(self) -> Tensor:
        """``(n,)`` bool; at most a share ``fpr`` of ID images has True, on average."""
        return self._image_is_ood

    @property
    def _images(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._image_score, self._image_p_value, self._image_is_ood

    @property
    def fpr(self) -> float | None:
        """The false-alarm rate of the guard."""
        return self._fpr

    @property
    def predicted(self) -> Tensor:
        """The likeliest class of each position, ``(n, H, W)`` or ``(n, T)``."""
        return self.logits.argmax(dim=-1 if self._channels_last else 1)

    def columns(self) -> dict[str, Tensor]:
        """Return the columns of a table with a row per image: the share of alarms, score, p-value and decision."""
        columns = {
            "share_ood": self.is_ood.flatten(1).double().mean(dim=1),
            "image_score": self.image_score,
            "image_p_value": self.image_p_value,
            "image_is_ood": self.image_is_ood,
        }
        return {name: values.detach().cpu() for name, values in columns.items()}

    def __repr__(self) -> str:
        what = "text" if self._channels_last else "image"
        share = float(self.is_ood.double().mean()) if self.is_ood.numel() else 0.0
        at = "" if self.fpr is None else f" at {rate(self.fpr)}"
        images = f"{int(self.image_is_ood.sum()):,} as a whole"
        return (
            f"DenseVerdict({count(len(self.is_ood), what)} of {' x '.join(map(str, self.is_ood.shape[1:]))}, alarms at "
            f"{100 * share:.1f} % of positions, {images}{at})"
        )

    def _repr_html_(self) -> str:
        from ..display.table import Table  # late: only notebooks need it

        columns = {name: values.tolist() for name, values in self.columns().items()}
        rows = [
            (str(row), f"{100 * share:.1f} %", f"{score:.4g}", f"{p_value:.2g}", "alarm" * alarm)
            for row, (share, score, p_value, alarm) in enumerate(zip(*columns.values(), strict=True))
        ]
        return Table(("row", *columns), rows, repr(self), left=(4,)).html([])


class DenseGuard(Guard):
    """A guard for a model with logits at every position; :meth:`Guard.fit` and :meth:`Guard.load` return it.

    On average over draws of the calibration images, at most a share ``fpr`` of the positions of a new ID image raises
    an alarm, and at most a share ``fpr`` of ID images does so as a whole, if calibration images and future ID images
    have the same distribution. Positions of one image may depend on each other in any way.

    Attributes:
        images: Calibration of images as a whole.
    """

    def __init__(
        self,
        network: Network,
        calibrated: CalibratedDetector,
        images: Images,
        loading: Loading | None = None,
        fit_result: FitResult | None = None,
    ) -> None:
        super().__init__(network, calibrated, loading, fit_result)
        self.images = images

    def at(self, fpr: float, confidence: float | None = None) -> DenseGuard:
        """Return this guard with another false-alarm rate, without refitting.

        The number of an image stays the quantile of its scores at the rate that the guard was fitted with.
        """
        calibrated = self.calibrated.at(fpr, confidence)
        return DenseGuard(self.network, calibrated, self.images.at(fpr), self.loading, self.fit_result)

    def __call__(self, data: Any) -> DenseVerdict:
        """Run images or texts through the model and return a verdict on every position, and on each of them.

        Args:
            data: As for any guard. Images of several sizes are given in separate calls.
        """
        verdicts = [self._decide(batch) for batch in self._batches(data)]
        if not verdicts:
            raise ValueError("the data gave no input at all. Is the data set empty, or the generator used up?")
        if len(verdicts) == 1:
            return verdicts[0]
        if len(sizes := {tuple(verdict.score.shape[1:]) for verdict in verdicts}) > 1:
            raise ValueError(
                f"one verdict needs maps of one size, but those of this data have {len(sizes)}: "
                f"{', '.join(' x '.join(map(str, size)) for size in sorted(sizes)[:3])}. Call the guard on each batch: "
                "[guard(x) for x in guard.batches(data)]."
            )
        first, joined = verdicts[0], (torch.cat([*column]).cpu() for column in zip(*verdicts, strict=True))
        images = zip(*(each._images for each in verdicts), strict=True)
        return DenseVerdict.of(joined, [torch.cat(each).cpu() for each in images], first.fpr, first._channels_last)

    def _batches(self, data: Any) -> Iterator[Batch]:
        batches = [data] if is_batch(data) else self.batches(data)
        return labelled_batches(batches, self.loading, None)

    def _run(self, batch: Batch) -> DensePass:
        result = self.network.run(batch)
        assert isinstance(result, DensePass)
        check_finite(result.features, "features")
        return result

    def _follow(self, device: torch.device) -> None:
        if self.calibration.scores.device != device:
            self.calibrated.to(device)
            self.images.calibration.to(device)

    def _decide(self, batch: Batch) -> DenseVerdict:
        return self.decide(self._run(batch))

    @torch.no_grad()
    def decide(self, result: DensePass) -> DenseVerdict:
        """Return the verdict on a batch that the model has run on."""
        self._follow(result.features.device)
        outputs = decide(result, self.calibrated, self.images)
        return DenseVerdict.of(outputs[:4], outputs[4:], self.fpr, result.channels_last)

    def overlay(self, image: Any) -> Image.Image:
        """Return a picture of an image, as the model sees it, with the positions that raise an alarm in red.

        Args:
            image: One image: as a call takes it, or a tensor ``(c, h, w)``.
        """
        image = image[None] if isinstance(image, Tensor) and image.ndim == 3 else image
        (batch, *others) = self._batches(image)
        x = batch.first_tensor
        if others or x.ndim != 4 or len(x) != 1 or x.shape[1] not in (1, 3):
            raise ValueError(
                f"an overlay is made of one image, (1, 3, h, w) or (1, 1, h, w), got {tuple(x.shape)}. Give one of "
                "them: guard.overlay(x[:1])."
            )
        return self.picture(x[0], self._decide(batch).is_ood[0])

    def picture(self, x: Tensor, alarms: Tensor) -> Image.Image:
        """Return a picture of a prepared image ``(c, h, w)`` with its alarms, of any size, in red."""
        red = at_size(alarms[None], x.shape[1:])[0].cpu().numpy()
        pixels = self._pixels(x.detach().cpu().float())
        pixels[red] = (1 - SHARE) * pixels[red] + SHARE * np.array(ALARM)
        return Image.fromarray(pixels.round().astype(np.uint8))

    def _pixels(self, x: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a prepared image ``(c, h, w)`` as colours ``(h, w, 3)`` from 0 to 255."""
        transform = self.transform
        if transform is not None and len(x) == len(transform.mode):
            std, mean = torch.tensor(transform.std or [1.0]), torch.tensor(transform.mean or [0.0])
            x = x * std[:, None, None] + mean[:, None, None]
        elif x.min() < 0 or x.max() > 1:  # how it was scaled is not known
            x = (x - x.min()) / (x.max() - x.min()).clamp_min(1e-12)
        return (255 * x.clamp(0, 1)).expand(3, *x.shape[1:]).movedim(0, -1).double().numpy().copy()

    def save(self, path: Path | str) -> None:
        """Write the guard, without the model, to a safetensors file."""
        self.network.check_unchanged()
        save_guard(Path(path), self.network, self.calibrated, self.loading, self.images)

    def as_module(self) -> DenseModule:
        """Return model and detector as one module, which returns :class:`DenseOutputs`."""
        self.network.check_unchanged()
        return DenseModule(self.network, self.calibrated, self.images)

    @torch.no_grad()
    def explain(  # type: ignore[override]  # an image has several regions
        self, data: Any, names: Sequence[str] | None = None, pairs: int = 3, regions: int = 3
    ) -> Regions:
        """Explain the alarms of each image: connected regions, each with its share of the image and a sentence.

        The sentence is about the most unusual position of a region; see :class:`~flatfold.Explanation`.

        Args:
            data: As in a call.
            names: Names of the classes, in the order of the logits.
            pairs: Number of pairs of classes to include.
            regions: Number of regions of an image, the largest first.
        """
        found = Regions()
        for batch in self._batches(data):
            result = self._run(batch)
            self._follow(result.features.device)
            maps = decide_on_grid(result, self.calibrated)
            found += find_regions(result, maps, self.detector, names, pairs, regions)
        return found

    def monitor(self, data: Any = None) -> Monitor:
        """Create a monitor of a stream, which counts images; update it with ``monitor.add(guard(x))``.

        The positions of one image depend on each other, so the evidence of a change is about images as a whole. The
        monitor also has the mean share of alarmed positions, ``share_ood``.

        Args:
            data: Inputs to begin with, as in a call; memory use does not grow with their number. By default none.
        """
        monitor = Monitor.of(CalibratedDetector(self.detector, self.images.calibration), positions=True)
        for batch in () if data is None else self._batches(data):
            monitor.add(self._decide(batch))
        return monitor

    def __repr__(self) -> str:
        return super().__repr__().replace("Guard(", "DenseGuard(", 1).replace("calibration group", "calibration image")


class DenseOutputs(NamedTuple):
    """What a graph of a guard for every position returns: the maps of a :class:`DenseVerdict`, and those of images."""

    logits: Tensor
    """``(n, c, H, W)`` or ``(n, T, c)``."""
    score: Tensor
    """``(n, H, W)`` or ``(n, T)``, as all maps."""
    p_value: Tensor
    is_ood: Tensor
    image_score: Tensor
    """``(n,)``, as all numbers of images."""
    image_p_value: Tensor
    image_is_ood: Tensor


def decide(result: DensePass, calibrated: CalibratedDetector, images: Images) -> DenseOutputs:
    """Return all maps and numbers of a batch that the model has run on."""
    score, p_value, is_ood = decide_on_grid(result, calibrated)
    numbers = images.of_maps(score, result.counted, result.size)
    maps = (smooth(score, result.size), at_size(p_value, result.size), at_size(is_ood, result.size))
    return DenseOutputs(result.outputs, *maps, numbers, *images.calibration(numbers))


def decide_on_grid(result: DensePass, calibrated: CalibratedDetector) -> tuple[Tensor, Tensor, Tensor]:
    """Return score, p-value and decision ``(n, *grid)`` at the positions of the layer."""
    rows = (result.features, result.logits)
    chunks = [slice(None)] if torch.compiler.is_compiling() else row_chunks(len(result.features), AT_ONCE)
    parts = [calibrated(*(values[part] for values in rows)) for part in chunks]
    score, p_value, is_ood = (torch.cat(column).reshape(result.grid) for column in zip(*parts, strict=True))
    if result.counted is not None:
        counted = result.counted.to(score.device)
        p_value, is_ood = p_value.where(counted, 1.0), is_ood & counted
    return score, p_value, is_ood


class DenseModule(GuardModule):
    """``x -> DenseOutputs`` in plain torch."""

    def __init__(self, network: Network, calibrated: CalibratedDetector, images: Images) -> None:
        super().__init__(network, calibrated)
        torch.compiler.assume_constant_result(drawn_cells)  # type: ignore[no-untyped-call]  # a decorator takes 2 s
        self.of_images = copy_around_memory(images.calibration)
        self.pixels, self.level = images.pixels, images.level

    def forward(self, *args: Any, **kwargs: Any) -> DenseOutputs:  # type: ignore[override]
        """Return the verdict on a batch; arguments are those of the model."""
        result = self.network(*args, **kwargs)
        assert isinstance(result, DensePass)
        return decide(result, self.calibrated, Images(self.pixels, self.level, self.of_images))


def fit_dense(
    found: EveryPositionError,
    detector: Detector,
    fpr: float,
    *,
    calibration: Iterable[Any] | None,
    seed: int,
    ignore_index: int | Sequence[int] | None,
    refused: Sequence[str],
    loading: Loading,
    execution: Execution,
) -> DenseGuard:
    """Fit a guard to the data of a model that was found to have logits at every position.

    ``calibration`` are batches of other images; ``refused`` names what the user gave and such a guard cannot have.
    """
    check_rate(fpr)
    if refused:
        raise ValueError(
            "a guard for every position has one threshold, and a rate that is a mean over images, so it takes no "
            f"{' or '.join(f'{name}=' for name in refused)}. Leave it out; of several images of a scene, give one."
        )
    named = [] if ignore_index is None else [ignore_index] if isinstance(ignore_index, int) else [*ignore_index]
    network = found.network
    device, ignored = execution.here().device, [*IGNORED, *named]
    drawn, pixels = draw(network, found.batches, ignored, device, seed)
    others = list[Drawn]()
    if calibration is not None:
        others, most = draw(network, labelled_batches(calibration, loading), ignored, device, seed + 1)
        pixels = min(pixels, most)
        drawn, others = ([each.thin(pixels) for each in part] for part in (drawn, others))
    result, images = fit_positions(detector, network.found.head, drawn, pixels, fpr, seed, others)
    assert result.calibration is not None
    network.reset_runtime()
    network.record_evidence()
    return DenseGuard(network, CalibratedDetector(result.detector, result.calibration), images, loading, result)

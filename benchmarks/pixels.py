"""Score maps against a pass of a network of DeepLab's cost, and memory against the number and the size of images."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from flatfold.core.bank import FeatureBank
from flatfold.data.batch import split_batch
from flatfold.data.sources import ImageSource
from flatfold.data.transform import Transform
from flatfold.detectors import create
from flatfold.evaluate.banks import Settings
from flatfold.evaluate.methods import peak_memory
from flatfold.evaluate.pixels import score_maps
from flatfold.evaluate.runner import run as run_suite
from flatfold.evaluate.suites.scenes import CLASSES, SceneNetwork
from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.network.heads import DensePass
from flatfold.network.network import Network

from .ratio import report, time_ratio

SHARE = 0.05  # of a pass that score maps may take
GIGABYTES = 4.0
FEW, MANY = 3000, 9000  # images: with fewer, the drawn positions have not reached their largest number
KILOBYTES = 20.0  # per image
ROUNDS = 3


def _convolution(inputs: int, outputs: int, size: int = 1, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (size // 2)
    layer = nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


class _Block(nn.Module):
    """Three convolutions and a shortcut, as in ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        parts = [*_convolution(inputs, width), *_convolution(width, width, 3, stride, dilation)]
        self.body = nn.Sequential(*parts, *_convolution(width, 4 * width)[:2])
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, 4 * width, 1, stride)[:2])

    def forward(self, x: Tensor) -> Tensor:
        """Return maps, with four times as many channels as the width."""
        return (self.body(x) + self.shortcut(x)).relu()


class DeepLab(nn.Module):
    """A network with the layers and the cost of DeepLabv3 on ResNet-50, without its weights."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        parts, inputs = [*_convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for width, count, stride, dilation in ((64, 3, 1, 1), (128, 4, 2, 1), (256, 6, 1, 2), (512, 3, 1, 4)):
            for number in range(count):
                parts.append(_Block(inputs, width, stride if number == 0 else 1, dilation))
                inputs = 4 * width
        self.body = nn.Sequential(*parts)
        rates = (12, 24, 36)
        self.branches = nn.ModuleList(
            nn.Sequential(*_convolution(inputs, 256, 3 if rate else 1, 1, rate or 1)) for rate in (0, *rates)
        )
        self.join = nn.Sequential(*_convolution(4 * 256, 256), *_convolution(256, 256, 3))
        self.head = nn.Conv2d(256, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of the size of the images."""
        h = self.body(x)
        logits = self.head(self.join(torch.cat([branch(h) for branch in self.branches], dim=1)))
        return interpolate(logits, x.shape[2:], mode="bilinear", align_corners=False)


class _Noise(ImageSource):
    """Smooth random images with masks, made when they are read."""

    masked = True

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__(Transform(), 8)
        self.rows, self.seed = rows, seed

    def name(self, row: int) -> str:
        return f"image {row}"

    def picture(self, row: int) -> tuple[str, np.ndarray]:  # type: ignore[type-arg]
        coarse = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(1000 * self.seed + row))
        return self.name(row), (255 * interpolate(coarse, (96, 96))[0].movedim(0, -1)).byte().numpy()

    def mask(self, row: int, picture: np.ndarray) -> np.ndarray:  # type: ignore[type-arg, override]
        mask = np.zeros((96, 96), np.int32)
        mask[:48, : 8 + row % 40] = 1
        return mask

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return f"{self.seed}-{self.rows}"

    def _identify(self, digest: object) -> None:
        raise NotImplementedError


def run() -> list[bool]:
    """Measure the share of score maps in a pass, and peaks of memory."""
    torch.manual_seed(0)
    model, images = DeepLab().eval(), torch.randn(2, 3, 512, 512)
    with torch.no_grad():
        network, _ = Network.of(model, split_batch(images[:, :, :64, :64]))
        result = network(images)
    assert isinstance(result, DensePass)
    head, found = network.found.head, []
    for name in ("msp", "fold", "fourfold"):
        sample = FeatureBank(result.features[::4], result.logits[::4].argmax(dim=1))
        detector = create(name).fit(sample, head).eval()

        def one_pass() -> object:
            with torch.no_grad():
                return model(images)

        def maps(detector=detector) -> object:  # type: ignore[no-untyped-def]
            return score_maps(detector, result, result.size)

        share = 1 / time_ratio(maps, one_pass, rounds=ROUNDS)
        found.append(report(f"{name}: score maps of 2 images of 512 x 512, share of a pass", share, "", SHARE, False))
    with peak_memory() as peak:
        large = network(torch.randn(1, 3, 1024, 2048))
        assert isinstance(large, DensePass)
        score_maps(create("fold").fit(sample, head).eval(), large, large.size)
    if peak.megabytes is not None:
        what = "peak memory of one image of 2048 x 1024 with its map"
        found.append(report(what, peak.megabytes / 1000, "GB", GIGABYTES, False))
    few, many = _peak(FEW), _peak(MANY)
    if few and many:
        each = 1000 * (many - few) / (MANY - FEW)
        found.append(report(f"peak memory of each image from {FEW} to {MANY}", each, "kB", KILOBYTES, False))
    return found


def _peak(images: int) -> float | None:
    """Return the peak memory in megabytes of scoring the pixels of some images."""
    torch.manual_seed(0)
    sets = {"train": _Noise(20, 1), "val": _Noise(20, 2), "test": _Noise(20, 3)}
    ood = (OodSet("noise", "far", _Noise(images, 4), "Noise."),)
    suite = Suite("noise", "", SceneNetwork().eval(), ood=ood, seed=0, classes=CLASSES, **sets)
    with TemporaryDirectory() as folder, peak_memory() as peak:
        run_suite(suite, ["msp", "fold"], Path(folder), Settings(replicates=100))
    return peak.megabytes

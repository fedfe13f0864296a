"""A small tree in the layout of OpenOOD v1.5; what its lists are called and how long they are is written by hand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from flatfold.network.openood import openood_network

CLASSIC, LARGE = "images_classic", "images_largescale"
KNOWN = 10  # classes that occur in a small tree; the networks have as many as they should


@dataclass(frozen=True)
class Listed:
    """A list of OpenOOD: its name, the folder of its images, their number, and the pattern of its paths."""

    list: str
    root: str
    count: int | None
    path: str
    size: tuple[int, int] = (32, 32)  # width, height
    mode: str = "RGB"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of OpenOOD: ID lists by split, OOD lists by group, checkpoints."""

    lists: str
    known: dict[str, Listed]
    near: dict[str, Listed]
    far: dict[str, Listed]
    network: str
    classes: int
    checkpoints: tuple[str, ...]
    accuracy: float
    resize: int = 256
    crop: int = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    @property
    def unknown(self):
        return self.near | self.far

    @property
    def every(self):
        return self.known | self.unknown


TIN = ("tin/val/n01443537/val_{}.JPEG", (64, 64))
TEXTURE = ("texture/banded/banded_{:04}.jpg", (60, 44))


def cifar(name, other, other_count, tin_val, tin, places, mean, std, accuracy, classes):
    run = f"results/{name}_resnet18_32x32_base_e100_lr0.1_default"
    known = {
        "train": Listed(f"train_{name}", CLASSIC, 50000, name + "/train/{}.png"),
        "val": Listed(f"val_{name}", CLASSIC, 1000, name + "/test/1{:03}.png"),
        "test": Listed(f"test_{name}", CLASSIC, 9000, name + "/test/{:04}.png"),
        "ood_val": Listed("val_tin", CLASSIC, tin_val, TIN[0].replace("val_", "val_1"), TIN[1]),
    }
    near = {
        other: Listed(f"test_{other}", CLASSIC, other_count, other + "/test/{:04}.png"),
        "tin": Listed("test_tin", CLASSIC, tin, *TIN),
    }
    far = {
        "mnist": Listed("test_mnist", CLASSIC, 70000, "mnist/test/{}.jpg", (28, 28), "L"),
        "svhn": Listed("test_svhn", CLASSIC, 26032, "svhn/test/{}.jpg"),
        "texture": Listed("test_texture", CLASSIC, 5640, *TEXTURE),
        "places365": Listed("test_places365", CLASSIC, places, "places365/a/airfield/{:08}.jpg", (40, 70)),
    }
    checkpoints = tuple(f"{run}/s{seed}/best.ckpt" for seed in range(3))
    return Benchmark(name, known, near, far, "resnet18_32x32", classes, checkpoints, accuracy, 32, 32, mean, std)


def imagenet(lists, train, val, test, network, classes, checkpoints, accuracy):
    photo = "imagenet_1k/val/ILSVRC2012_val_{:08}.JPEG"
    known = {
        "train": Listed(f"train_{lists}", LARGE, train, "imagenet_1k/train/n01440764/{}.JPEG", (50, 38)),
        "val": Listed(f"val_{lists}", LARGE, val, photo.replace("{:08}", "1{:07}"), (50, 38)),
        "test": Listed(f"test_{lists}", LARGE, test, photo, (50, 38)),
        "ood_val": Listed("val_openimage_o", LARGE, 1763, "openimage_o/images/v{}.jpg", (30, 40)),
    }
    near = {
        "ssb_hard": Listed("test_ssb_hard", LARGE, 49000, "ssb_hard/n00470682/n00470682_{}.JPEG", (44, 44)),
        "ninco": Listed("test_ninco", LARGE, 5879, "ninco/amphiuma_means/000_{}.jpeg", (61, 30)),
    }
    far = {
        "inaturalist": Listed("test_inaturalist", LARGE, 10000, "inaturalist/images/{}.jpg", (30, 52), "L"),
        "textures": Listed("test_textures", CLASSIC, 5160, *TEXTURE),
        "openimage_o": Listed("test_openimage_o", LARGE, 15869, "openimage_o/images/t{}.jpg", (30, 40)),
    }
    return Benchmark(lists, known, near, far, network, classes, checkpoints, accuracy)


CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 95.06, 10
CIFAR100 = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), 77.25, 100
RUN200 = tuple(f"results/imagenet200_resnet18_224x224_base_e90_lr0.1_default/s{seed}/best.ckpt" for seed in range(3))
RESNET50 = ("results/pretrained_weights/resnet50_imagenet1k_v1.pth",)
BENCHMARKS = {
    "cifar10": cifar("cifar10", "cifar100", 9000, 1000, 7793, 35195, *CIFAR10),
    "cifar100": cifar("cifar100", "cifar10", 10000, 972, 6526, 33773, *CIFAR100),
    "imagenet200": imagenet("imagenet200", None, 1000, 9000, "resnet18_224x224", 200, RUN200, 86),
    "imagenet1k": imagenet("imagenet", 1281167, 5000, 45000, "resnet50", 1000, RESNET50, 76.18),
}
FEW = {"train": 4 * KNOWN, "val": 2 * KNOWN, "test": 3 * KNOWN, "ood_val": 7}  # OOD sets have UNKNOWN
UNKNOWN = 9


def make_openood(root: Path, name: str, full_lists: bool = False) -> Path:
    """Write a small tree for one benchmark: lists, images and checkpoints with random weights.

    With ``full_lists`` the lists are as long as they should be and name the same few images again and again; there is
    no list of the training images of ImageNet-1K then.
    """
    benchmark = BENCHMARKS[name]
    for place, (split, listed) in enumerate(benchmark.every.items()):
        few = FEW.get(split, UNKNOWN)
        write_images(root / "data" / listed.root, listed, few, np.random.default_rng(place))
        if not (full_lists and name == "imagenet1k" and split == "train"):
            known, count = split in ("train", "val", "test"), (full_lists and listed.count) or few
            lines = [f"{listed.path.format(n % few)} {n % few % KNOWN if known else -1}\n" for n in range(count)]
            path = list_path(root, benchmark, listed)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines))
    for seed, checkpoint in enumerate(benchmark.checkpoints):
        (root / checkpoint).parent.mkdir(parents=True, exist_ok=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            torch.save(openood_network(benchmark.network, benchmark.classes).state_dict(), root / checkpoint)
    return root


def write_images(folder: Path, listed: Listed, few: int, rng: np.random.Generator) -> None:
    """Write noise around a colour that tells the class, in the format of the file's name."""
    width, height = listed.size
    shape = (height, width) if listed.mode == "L" else (height, width, 3)
    for number in range(few):
        path = folder / listed.path.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, shape) + 17 * (number % KNOWN)
        Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


def list_path(root: Path, benchmark: Benchmark, listed: Listed) -> Path:
    return root / "data" / "benchmark_imglist" / benchmark.lists / f"{listed.list}.txt"

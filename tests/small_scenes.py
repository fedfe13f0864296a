"""A small segmentation network, scenes that it knows, and files of these."""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate

import flatfold as ff
from flatfold import Guard
from tests.architectures import Net

STD = 6.0  # values of images in files become STD * (value / 255 - 0.5)
C, SIZE, N = 4, (12, 16), 44
GRID = (6, 8)


def network(outputs=C, resize=True):
    """Return a network whose features are half as large as its images, and whose classes are channels of these."""

    def forward(m, x):
        z = m.head(torch.relu(m.body(x)))
        return interpolate(z, x.shape[2:], mode="bilinear", align_corners=False) if resize else z

    torch.manual_seed(0)
    body = nn.Conv2d(3, 6, 3, stride=2, padding=1)
    return Net(forward, body=body, head=nn.Conv2d(6, outputs, 1)).eval()


def scenes(n=N, size=SIZE, seed=1):
    """Return images with regions, and the classes that the network sees in most of their pixels."""
    g = torch.Generator().manual_seed(seed)
    x = interpolate(torch.randn(n, 3, 3, 3, generator=g), size) + 0.3 * torch.randn(n, 3, *size, generator=g)
    with torch.no_grad():
        masks = network()(x).argmax(dim=1)
    return x, masks


def batched(x, masks, rows=8):
    return [(x[i : i + rows], masks[i : i + rows]) for i in range(0, len(x), rows)]


def fitted(method="fourfold", fpr=0.1, **options):
    return Guard.fit(network(), batched(*scenes()), method=method, fpr=fpr, **options)


def write_scenes(folder, n, seed=1, unusual=()):
    """Write images and the masks of their classes as PNG files; return their transform.

    In the rows ``unusual`` an object has values far outside of the others.
    """
    transform = ff.Transform(mean=(0.5,) * 3, std=(1 / STD,) * 3)
    x, _ = scenes(n, seed=seed)
    pixels = (255 * (x / STD + 0.5)).round().clamp(0, 255)
    for row in unusual:
        pixels[row, :, 4:9, 4:11] = torch.tensor([255.0, 0.0, 255.0])[:, None, None]
    values = STD * (pixels / 255 - 0.5)
    with torch.no_grad():
        masks = network()(values).argmax(dim=1)
    for name, each in (("images", pixels.movedim(1, -1)), ("masks", masks)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row, image in enumerate(each.numpy().astype(np.uint8)):
            Image.fromarray(image).save(folder / name / f"{row:04d}.png")
    return transform

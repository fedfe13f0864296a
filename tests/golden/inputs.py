"""The inputs of the golden tests: features and a head, images, and a trained network for them.

They are kept in ``inputs.safetensors`` and ``tiny.safetensors``, because random generators differ between versions.
``python -m tests.golden.inputs`` made both files, and the guard of ``guard.safetensors``.
``guard_fourfold.safetensors`` is a guard with the default method from the time when FourFold had four signs, and cannot
be made again.
"""

import shutil

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import flatfold as ff
from tests.golden.nets import tiny
from tests.golden.pins import FOLDER

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
TRANSFORM = ff.Transform(mean=MEAN, std=STD)
CLASSES = 4


def load():
    """Return the tensors by name."""
    return load_file(FOLDER / "inputs.safetensors")


def network():
    """Return the trained network, in evaluation mode."""
    model = tiny()
    model.load_state_dict(load_file(FOLDER / "tiny.safetensors"))
    return model.eval()


def write_images(folder, name, labelled):
    """Write one set of images as PNG files, in class folders if they are labelled."""
    tensors = load()
    for row, pixels in enumerate(tensors[name].numpy()):
        place = folder / f"class{tensors[f'{name}_labels'][row]}" if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{row:03d}.png")


def write_network(folder):
    """Put the module ``nets`` and its weights into a folder."""
    for name in ("nets.py", "tiny.safetensors"):
        shutil.copy(FOLDER / name, folder)


def batches(name):
    """Return prepared images as labelled batches."""
    tensors = load()
    x = torch.stack([TRANSFORM(pixels) for pixels in tensors[name].numpy()])
    return list(zip(x.split(32), tensors[f"{name}_labels"].split(32), strict=True))


def colours(rng, n, known=True):
    """Return noise in which the stripe of each class has a colour, or noise alone; and the classes."""
    labels = np.arange(n) % CLASSES
    x = rng.integers(0, 160, (n, 8, 8, 3))
    if known:
        for row, label in enumerate(labels):
            x[row, 2 * label : 2 * label + 2, :, label % 3] += 60
            x[row, :, 2 * label : 2 * label + 2, (label + 1) % 3] += 35
    return torch.from_numpy(x.clip(0, 255).astype(np.uint8)), torch.from_numpy(labels)


def make():
    """Write the files anew."""
    from tests.conftest import World

    world, held_out, rng = World.make(), World.make(seed=1), np.random.default_rng(0)
    tensors = {
        "features": world.bank.features,
        "labels": world.bank.labels,
        "known": held_out.bank.features[:20].contiguous(),
        "unknown": world.unknown[:20].contiguous(),
        "weight": world.head.weight,
        "bias": world.head.bias,
    }
    for name, n in (("train", 400), ("val", 240), ("test", 40)):
        tensors[name], tensors[f"{name}_labels"] = colours(rng, n)
    tensors["noise"], tensors["noise_labels"] = colours(rng, 24, known=False)
    save_file(tensors, FOLDER / "inputs.safetensors")
    torch.manual_seed(0)
    model = tiny()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(25):
        for x, y in batches("train"):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    save_file(model.state_dict(), FOLDER / "tiny.safetensors")
    guard = ff.Guard.fit(model.eval(), batches("val"), method="autofold", fpr=0.1)
    guard.save(FOLDER / "guard.safetensors")


if __name__ == "__main__":
    make()

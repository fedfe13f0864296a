"""What the reader of a page has, by the word with which the page asks for it: files, and names for Python."""

import shutil
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import flatfold as ff
from tests.openood_tree import make_openood

ROOT = Path(__file__).parents[2]
NETS = """
from torch import nn


def resnet20():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


resnet = resnet20
"""


def world():
    """A model, data of every kind that Python takes, and a folder of photos."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))
    rng = np.random.default_rng(0)
    x = torch.rand(200, 3, 8, 8)
    y = model(x).argmax(-1)
    for i in range(6):
        path = Path("photos", f"class{i % 2}", f"{i // 2}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (260, 300, 3), np.uint8)).save(path)
    return {
        "torch": torch,
        "model": model,
        "val_loader": [(x[:100], y[:100]), (x[100:], y[100:])],
        "patients": [f"patient {number // 4}" for number in range(200)],
        "new_images": torch.rand(4, 3, 8, 8),
        "new_loader": [torch.rand(9, 3, 8, 8)],
        "test_loader": [(x[:20], y[:20])],
        "weight": rng.normal(size=(5, 7)).astype(np.float32),
        "bias": rng.normal(size=5).astype(np.float32),
        "features": rng.random((20, 7)).astype(np.float32),
        "labels": np.arange(20, dtype=np.int32) % 5,
        "id_scores": rng.normal(size=50),
        "ood_scores": rng.normal(1, 1, size=50),
    }


def photos():
    """A module with a network, its weights, images sorted by class, photos, and a list of these."""
    network = write_network("resnet20.safetensors")
    for k in range(3):
        write_images(f"val/{k}", 40, k)
    shutil.rmtree("photos", ignore_errors=True)  # those of `world` have another size
    write_images("photos", 30)
    Path("images.txt").write_text("".join(f"{path}\n" for path in sorted(Path("photos").glob("*.png"))))
    Path("classes.txt").write_text("airplane\ncat\ndog\n")
    for name in ("cat.png", "dog.png"):
        Path(name).write_bytes(Path("photos", "0.png").read_bytes())
    return {"network": network}


def guard():
    """The photos, and a guard for their network; a row of features for it."""
    prepare = ff.Transform(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    ff.Guard.fit(photos()["network"], ff.FolderImages("val", prepare)).save("guard.safetensors")
    Path("features.f32").write_bytes(struct.pack("<8f", *range(8)))
    return {}


def features():
    """Features to score, ID features, and the last layer."""
    g = torch.Generator().manual_seed(0)
    for name in ("f", "val", "more_val"):
        rows = {"features": torch.rand(40, 7, generator=g), "labels": torch.arange(40) % 5}
        save_file(rows, f"{name}.safetensors")
    head = {"weight": torch.randn(5, 7, generator=g), "bias": torch.randn(5, generator=g)}
    save_file(head, "head.safetensors")
    return {}


def suite():
    """What a suite file is made from."""
    write_network("w.pt")
    for k in range(3):
        write_images(f"photos/train/{k}", 10, k)
        write_images(f"photos/test/{k}", 20, k)
    write_images("other/textures", 20)
    return {}


def openood():
    """A small tree in the layout of OpenOOD; commands that name another place mean this one."""
    make_openood(Path("openood"), "cifar10")
    return {}


def checkout():
    """The examples of the repository."""
    Path("examples").symlink_to(ROOT / "examples")
    return {}


def write_network(weights):
    """Write a module with a network, and its weights; return the network."""
    Path("nets.py").write_text(NETS)
    scope = {}
    exec(NETS, scope)
    torch.manual_seed(0)
    network = scope["resnet20"]().eval()
    (torch.save if weights.endswith(".pt") else save_file)(network.state_dict(), weights)
    return network


def write_images(folder, n, seed=7):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for i, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (n, 12, 12, 3), np.uint8)):
        Image.fromarray(pixels // (1 + seed % 3)).save(Path(folder, f"{i}.png"))


BELONGINGS = {each.__name__: each for each in (world, photos, guard, features, suite, openood, checkout)}

"""Guards around torchvision's classifiers, prepared and read as its users do."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import flatfold as ff
from flatfold.network.model_loading import named_model, published_transform
from tests.architectures import CLASSES
from tests.ecosystem.guarded import built_for_images, check_export, check_guard, random_batches

pytestmark = pytest.mark.ecosystem

# The size of the images, where 64 is too small, and options.
ARCHITECTURES = {
    **dict.fromkeys(["resnet18", "resnet50", "efficientnet_b0", "mobilenet_v3_small", "convnext_tiny"], (64, {})),
    **dict.fromkeys(["swin_t", "densenet121", "vgg11", "shufflenet_v2_x0_5", "regnet_y_400mf"], (64, {})),
    "vit_b_16": (64, {"image_size": 64}),
    "googlenet": (64, {"init_weights": False}),
    "inception_v3": (96, {"init_weights": False}),
    "maxvit_t": (224, {}),
}


def make(name, **options):
    from torchvision.models import get_model

    return get_model(name, weights=None, num_classes=CLASSES, **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_guard_around_a_classifier_answers_as_the_classifier_does(name, tmp_path):
    side, options = ARCHITECTURES[name]
    model, x = built_for_images(partial(make, name, **options), side)
    check_guard(model, *random_batches(x), tmp_path, "fold")


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_a_guard_around_a_classifier_becomes_a_graph(name, tmp_path):
    check_export(*built_for_images(partial(make, name), 64), tmp_path)


def test_the_published_preparation_of_every_classifier_becomes_a_transform(pictures):
    from torchvision.models import get_model_weights

    image = pictures[0][0].resize((500, 333), Image.Resampling.BICUBIC)
    for name in ARCHITECTURES:
        preset = get_model_weights(name).DEFAULT.transforms()
        ours, theirs = ff.Transform.of(preset)(image), preset(image)
        assert ours.shape == theirs.shape, name
        assert float((ours - theirs).abs().mean()) < 0.02, name
        assert published_transform(f"torchvision/{name}", None, "DEFAULT") == ff.Transform.of(preset)


def test_an_image_folder_and_its_preparation_give_the_guard_that_the_path_gives(folder, tmp_path):
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.models import ResNet18_Weights
    from torchvision.transforms import v2

    model, _ = built_for_images(partial(make, "resnet18"), 64)
    preset = ResNet18_Weights.DEFAULT.transforms(crop_size=64, resize_size=72)
    steps = [v2.Resize(72), v2.CenterCrop(64), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    compose = v2.Compose([*steps, v2.Normalize(preset.mean, preset.std)])
    prepared = ImageFolder(folder, preset)
    batch = torch.stack([x for x, _ in prepared][:4])
    guards = [
        check_guard(model, DataLoader(prepared, 10), batch, tmp_path),
        check_guard(model, prepared, batch, tmp_path),
        check_guard(model, ImageFolder(folder), batch, tmp_path, transform=preset),
        check_guard(model, folder, batch, tmp_path, transform=preset),
        check_guard(model, folder, batch, tmp_path, transform=compose),
    ]
    for guard in guards[1:]:
        assert guard.fit_result.accuracy == guards[0].fit_result.accuracy
        assert_close(guard(batch).score, guards[0](batch).score, rtol=1e-2, atol=1e-2)
    for guard in guards[2:]:
        assert guard.transform.crop == 64


def test_fake_data_gives_a_guard(tmp_path):
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    model, _ = built_for_images(partial(make, "mobilenet_v3_small"), 64)
    data = FakeData(104, (3, 64, 64), CLASSES, ToTensor())
    assert check_guard(model, data, torch.stack([data[n][0] for n in range(4)]), tmp_path).calibration.samples == 52


def test_a_network_is_built_by_its_name_with_weights_from_a_file(tmp_path):
    model = make("resnet18")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    named = named_model("torchvision/resnet18", tmp_path / "weights.pt")
    x = torch.from_numpy(np.random.default_rng(0).random((2, 3, 64, 64), np.float32))
    assert torch.equal(named(x), model.eval()(x))
    with pytest.raises(ValueError, match="resnet18"):
        named_model("torchvision/resnet17", tmp_path / "weights.pt")

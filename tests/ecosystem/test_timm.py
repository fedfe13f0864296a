"""Guards around timm's classifiers, prepared as its users do."""

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import flatfold as ff
from flatfold.network.model_loading import named_model, published_transform
from tests.architectures import CLASSES
from tests.ecosystem.guarded import built_for_images, check_export, check_guard, random_batches

pytestmark = pytest.mark.ecosystem

CONVOLUTIONS = [
    *["resnet18", "efficientnet_lite0", "convnext_atto", "mobilenetv3_small_050", "fastvit_t8", "repvgg_a0"],
    *["ghostnet_050", "hardcorenas_a", "tf_efficientnetv2_b0", "tiny_vit_5m_224", "mobilevit_xxs"],
]
TRANSFORMERS = [  # whose size of the images is an option
    *["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "beit_base_patch16_224", "mixer_s32_224"],
    *["cait_xxs24_224", "eva02_tiny_patch14_224", "deit_tiny_distilled_patch16_224", "levit_128s"],
]
NAMES = [*CONVOLUTIONS, *TRANSFORMERS, "efficientformer_l1"]


def make(name):
    import timm

    options = {"img_size": 64} if name in TRANSFORMERS else {}
    side = 224 if name == "efficientformer_l1" else 64
    return built_for_images(lambda: timm.create_model(name, num_classes=CLASSES, **options), side)


@pytest.mark.parametrize("name", NAMES)
def test_a_guard_around_a_classifier_answers_as_the_classifier_does(name, tmp_path):
    model, x = make(name)
    check_guard(model, *random_batches(x), tmp_path, "fold")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto"])
def test_a_guard_around_a_classifier_becomes_a_graph(name, tmp_path):
    check_export(*make(name), tmp_path)


def test_the_preparation_of_every_classifier_becomes_the_same_transform_from_its_settings_and_its_steps(pictures):
    import timm
    from timm.data import create_transform, resolve_data_config

    image = pictures[0][0].resize((500, 333), Image.Resampling.BICUBIC)
    for name in NAMES:
        model = timm.create_model(name)
        config = resolve_data_config({}, model=model)
        steps = create_transform(**config)
        ours, theirs = ff.Transform.of(config)(image), steps(image)
        assert ours.shape == theirs.shape, name
        assert float((ours - theirs).abs().mean()) < 0.02, name
        assert torch.equal(ff.Transform.of(steps)(image), ours), name
        assert torch.equal(published_transform(f"timm/{name}", model, "DEFAULT")(image), ours), name


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # timm's data set leaves files open
def test_a_folder_with_the_preparation_of_the_model_gives_a_guard(folder, pictures, tmp_path):
    from timm.data import create_dataset, create_loader, create_transform, resolve_data_config

    model, _ = make("mobilenetv3_small_050")
    config = resolve_data_config({"input_size": (3, 64, 64)}, model=model)
    steps = create_transform(**config)
    batch = torch.stack([steps(image) for image, _ in pictures[:4]])
    loader = create_loader(
        create_dataset("", root=folder), config["input_size"], 16, device=torch.device("cpu"), use_prefetcher=False,
        num_workers=0, mean=config["mean"], std=config["std"], crop_pct=config["crop_pct"],
        interpolation=config["interpolation"],
    )  # fmt: skip
    guards = [
        check_guard(model, loader, batch, tmp_path),
        check_guard(model, folder, batch, tmp_path, transform=config),
        check_guard(model, folder, batch, tmp_path, transform=steps),
    ]
    for guard in guards[1:]:
        assert guard.transform.crop == 64
        assert_close(guard(batch).score, guards[0](batch).score, rtol=1e-2, atol=1e-2)


def test_a_network_is_built_by_its_name_with_weights_from_a_file(tmp_path):
    model, x = make("resnet18")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    named = named_model("timm/resnet18", tmp_path / "weights.pt")
    assert torch.equal(named(x), model.eval()(x))

"""Guards for every position around segmentation networks of torchvision and models of transformers, as they come."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.network.heads import find_head
from tests.architectures import built

pytestmark = pytest.mark.ecosystem

CLASSES, N = 4, 24
SEGMENTATION = {
    "fcn_resnet50": (("classifier.4",), "bilinear"),
    "deeplabv3_mobilenet_v3_large": (("classifier.4",), "bilinear"),
    "lraspp_mobilenet_v3_large": (("classifier.low_classifier", "classifier.high_classifier"), "bilinear"),
}


def of_torchvision(name, **options):
    models = pytest.importorskip("torchvision.models.segmentation", reason="torchvision: make test-ecosystem")
    return built(
        lambda: (
            getattr(models, name)(weights=None, weights_backbone=None, num_classes=CLASSES, **options),
            torch.randn(N, 3, 48, 64),
        )
    )


def check(guard, rows, logits, size):
    """Compare a guard with its model on some inputs."""
    verdict = guard(rows)
    assert_close(verdict.logits, logits, atol=1e-4, rtol=1e-4)
    assert verdict.is_ood.shape == verdict.score.shape == size
    assert torch.equal(verdict.is_ood, verdict.p_value <= guard.fpr)
    assert verdict.image_is_ood.shape == size[:1]


@pytest.mark.parametrize("name", SEGMENTATION)
def test_segmentation_networks_of_torchvision(name, tmp_path):
    model, x = of_torchvision(name)
    model.eval()
    found = find_head(model, x[:2])
    assert (found.relation.layers, found.relation.resize) == SEGMENTATION[name]
    masks = torch.randint(0, CLASSES, (N, 48, 64), generator=torch.Generator().manual_seed(0))
    masks[:, :5] = 255
    data = [(x[i : i + 4], masks[i : i + 4]) for i in range(0, N, 4)]
    guard = ff.Guard.fit(model, data, fpr=0.1)
    with torch.no_grad():
        logits = model(x[:2])["out"]
    check(guard, x[:2], logits, (2, 48, 64))
    guard.save(tmp_path / "guard.safetensors")
    again = ff.Guard.load(tmp_path / "guard.safetensors", model)
    assert torch.equal(again(x[:2]).p_value, guard(x[:2]).p_value)
    assert guard.overlay(x[0]).size == (64, 48)


def test_an_auxiliary_head_of_torchvision_is_not_taken():
    model, x = of_torchvision("fcn_resnet50", aux_loss=True)
    assert find_head(model.eval(), x[:2]).relation.layers == ("classifier.4",)


def test_segformer():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-ecosystem")
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        num_labels=CLASSES,
    )
    model, x = built(lambda: (transformers.SegformerForSemanticSegmentation(config), torch.randn(N, 3, 64, 64)))
    model.eval()
    masks = torch.randint(0, CLASSES, (N, 64, 64), generator=torch.Generator().manual_seed(0))
    data = [{"pixel_values": x[i : i + 4], "labels": masks[i : i + 4]} for i in range(0, N, 4)]
    guard = ff.Guard.fit(model, data, fpr=0.1)
    with torch.no_grad():
        logits = model(pixel_values=x[:2]).logits
    check(guard, {"pixel_values": x[:2]}, logits, (2, 16, 16))
    assert guard.overlay({"pixel_values": x[:1]}).size == (64, 64)


def test_a_classifier_of_tokens(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-ecosystem")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=CLASSES,
        max_position_embeddings=16,
    )
    model, tokens = built(lambda: (transformers.BertForTokenClassification(config), torch.randint(1, 50, (2 * N, 10))))
    model.eval()
    lengths = torch.randint(3, 11, (2 * N, 1), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(10) < lengths).long()
    with torch.no_grad():
        labels = model(input_ids=tokens, attention_mask=mask).logits.argmax(dim=-1).where(mask == 1, -100)
    inputs = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    data = [{name: values[i : i + 8] for name, values in inputs.items()} for i in range(0, 2 * N, 8)]
    guard = ff.Guard.fit(model, data, method="knn", fpr=0.1)
    few = {"input_ids": tokens[:3], "attention_mask": mask[:3]}
    with torch.no_grad():
        logits = model(**few).logits
    check(guard, few, logits, (3, 10))
    longer = {name: torch.nn.functional.pad(values, (0, 4)) for name, values in few.items()}
    assert_close(guard(longer).score[:, :3], guard(few).score[:, :3], atol=1e-4, rtol=1e-4)
    assert not guard(longer).is_ood[:, 10:].any()
    guard.save(tmp_path / "guard.safetensors")
    again = ff.Guard.load(tmp_path / "guard.safetensors", model)
    assert torch.equal(again(few).is_ood, guard(few).is_ood)

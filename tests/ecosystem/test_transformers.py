"""Guards around transformers' classifiers of images, texts and sounds, prepared as its users do."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import flatfold as ff
from flatfold.network.model_loading import named_model, published_transform
from tests.architectures import CLASSES, HUB, built
from tests.ecosystem.guarded import check_export, check_guard, random_batches

pytestmark = pytest.mark.ecosystem

IMAGES = ["resnet", "swin", "vit", "clip", "convnext"]
TEXTS = ["bert", "roberta", "distilbert", "deberta_v2", "t5"]
SOUNDS = ["audio_spectrogram", "wav2vec2"]


@pytest.mark.parametrize("name", [*IMAGES, *TEXTS, *SOUNDS])
def test_a_guard_around_a_classifier_answers_as_the_classifier_does(name, tmp_path):
    model, inputs = built(HUB[name])
    check_guard(model, *random_batches(inputs), tmp_path, "fold")


@pytest.mark.parametrize("name", ["vit", "bert", "deberta_v2", "wav2vec2"])
def test_a_guard_around_a_classifier_becomes_a_graph(name, tmp_path):
    check_export(*built(HUB[name]), tmp_path)


@pytest.mark.parametrize("backend", ["", "Pil"])  # "" is that of torchvision
def test_image_processors_become_transforms(pictures, backend):
    import transformers

    image = pictures[0][0].resize((500, 333), Image.Resampling.BICUBIC)
    for name in ("ViT", "ConvNext", "CLIP", "Beit", "DeiT"):
        processor = getattr(transformers, f"{name}ImageProcessor{backend}")()
        theirs = processor(images=image, return_tensors="pt")["pixel_values"][0]
        ours = ff.Transform.of(processor)(image)
        assert ours.shape == theirs.shape, name
        assert float((ours - theirs).abs().mean()) < 0.03, name


def test_an_image_processor_prepares_a_folder_and_a_pipeline_agrees(folder, pictures, tmp_path):
    from transformers import ViTImageProcessor, pipeline

    model, _ = built(HUB["vit"])
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    pipe = pipeline("image-classification", model=model, image_processor=processor)
    images = [image for image, _ in pictures[:4]]
    batch = pipe.image_processor(images, return_tensors="pt")
    guard = check_guard(pipe.model, folder, batch, tmp_path, transform=pipe.image_processor)
    check_pipeline(pipe, images, guard(batch).logits)


def test_a_pipeline_for_texts_agrees_with_the_guard_of_its_model(texts, tokenizer, tmp_path):
    from transformers import pipeline

    model, _ = built(HUB["bert"])
    pipe = pipeline("text-classification", model=model, tokenizer=tokenizer)
    some = [text for text, _ in texts[:4]]
    batch = pipe.tokenizer(some, padding=True, return_tensors="pt")
    guard = check_guard(pipe.model, texts, batch, tmp_path, collate=pipe.tokenizer)
    check_pipeline(pipe, some, guard(batch).logits)


def check_pipeline(pipe, inputs, logits):
    """The probabilities of a pipeline, one input at a time, are those of the logits."""
    for entries, row in zip(pipe(inputs, top_k=CLASSES), logits.softmax(dim=-1), strict=True):
        by_class = {entry["label"]: entry["score"] for entry in entries}
        assert_close(torch.tensor([by_class[f"LABEL_{k}"] for k in range(CLASSES)]), row, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "extractor"), [("wav2vec2", "Wav2Vec2"), ("audio_spectrogram", "AST")])
def test_a_feature_extractor_prepares_sounds(name, extractor, tmp_path):
    import transformers

    options = {"num_mel_bins": 16, "max_length": 32} if extractor == "AST" else {}
    extract = getattr(transformers, f"{extractor}FeatureExtractor")(**options)
    model, _ = built(HUB[name])
    rng = np.random.default_rng(0)
    sounds = [(rng.normal(size=8000).astype(np.float32), n % CLASSES) for n in range(104)]

    def join(items):
        waves = [wave for wave, _ in items]
        return {**extract(waves, sampling_rate=16000, return_tensors="pt"), "labels": [label for _, label in items]}

    batch = {key: value for key, value in join(sounds[:4]).items() if key != "labels"}
    check_guard(model, sounds, batch, tmp_path, collate=join)


def test_a_network_is_read_from_the_folder_in_which_it_was_saved(pictures, tmp_path):
    from transformers import ViTImageProcessor

    model, inputs = built(HUB["vit"])
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    for part in (model, processor):
        part.save_pretrained(tmp_path / "vit")
    named = named_model(f"transformers/{tmp_path / 'vit'}")
    with torch.no_grad():
        assert torch.equal(named(**inputs).logits, model.eval()(**inputs).logits)
    assert published_transform(f"transformers/{tmp_path / 'vit'}", named, None) == ff.Transform.of(processor)

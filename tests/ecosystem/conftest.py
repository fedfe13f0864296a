"""Tests with the real libraries, which ``make test-ecosystem`` installs outside of the clone."""

import numpy as np
import pytest
from PIL import Image

CLASSES = ("circles", "stripes")
TOPICS = (("sun", "rain", "wind", "snow"), ("goal", "match", "team", "score"))


@pytest.fixture(autouse=True, scope="session")
def _libraries():
    for name in ("torchvision", "timm", "transformers", "datasets"):
        pytest.importorskip(name, reason=f"{name} is not installed: make test-ecosystem")


@pytest.fixture(scope="session")
def pictures():
    """Fifty-two pictures each of two classes, of several sizes; as pairs of a PIL image and a class index."""
    rng = np.random.default_rng(0)
    return [(picture(rng, label), label) for _ in range(52) for label in range(len(CLASSES))]


def picture(rng, label):
    height, width = rng.integers(70, 110, 2)
    y, x = np.mgrid[:height, :width] / 10.0
    wave = np.hypot(x - x.mean(), y - y.mean()) if label == 0 else x + rng.uniform(-1, 1) * y
    colours = rng.uniform(0, 255, (2, 3))
    return Image.fromarray(np.where(np.sin(wave)[..., None] > 0, *colours).astype(np.uint8))


@pytest.fixture(scope="session")
def folder(pictures, tmp_path_factory):
    """The same as files, in a folder for each class."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (image, label) in enumerate(pictures):
        path = root / CLASSES[label] / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    return root


@pytest.fixture(scope="session")
def texts():
    """Fifty-two sentences each about two topics, of several lengths; as pairs of a text and a class index."""
    rng = np.random.default_rng(0)
    return [(" ".join(rng.choice(TOPICS[label], rng.integers(2, 9))), label) for _ in range(52) for label in range(2)]


@pytest.fixture(scope="session")
def tokenizer():
    """A tokeniser of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *TOPICS[0], *TOPICS[1]])}
    by_word = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]")

"""Guards fitted on the data sets of Hugging Face: images and texts, in memory, mapped, streamed and from a folder."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

import flatfold as ff
from tests.architectures import HUB, built
from tests.ecosystem.conftest import CLASSES
from tests.ecosystem.guarded import check_guard

pytestmark = pytest.mark.ecosystem

SMALL = ff.Transform(resize=32, crop=32, mean=(0.5,) * 3, std=(0.5,) * 3)


def check_same(guards, batch):
    """Guards that were fitted on the same data in several forms."""
    for guard in guards[1:]:
        assert guard.fit_result.accuracy == guards[0].fit_result.accuracy is not None
        assert_close(guard(batch).score, guards[0](batch).score, rtol=1e-3, atol=1e-3)


def test_columns_of_images_are_prepared_by_a_transform_of_the_guard_or_of_the_data(pictures, folder, tmp_path):
    from datasets import ClassLabel, Dataset, Features, Image, load_dataset

    model, _ = built(HUB["resnet"])
    images, labels = zip(*pictures, strict=True)
    kinds = Features({"photo": Image(), "kind": ClassLabel(names=list(CLASSES))})
    data = Dataset.from_dict({"photo": list(images), "kind": list(labels)}, features=kinds)

    def prepare(rows):
        return {"pixel_values": [SMALL(image.convert("RGB")) for image in rows["photo"]], "labels": rows["kind"]}

    batch = {"pixel_values": torch.stack([SMALL(image) for image in images[:4]])}
    files = load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    guards = [
        check_guard(model, data, batch, tmp_path, transform=SMALL),
        check_guard(model, data.with_transform(prepare), batch, tmp_path),
        check_guard(model, DataLoader(data.with_transform(prepare), 16), batch, tmp_path),
        check_guard(model, data.map(prepare, batched=True, remove_columns=["photo", "kind"]), batch, tmp_path),
        check_guard(model, data.to_iterable_dataset(), batch, tmp_path, transform=SMALL),
    ]
    check_same(guards, batch)
    assert check_guard(model, files, batch, tmp_path, transform=SMALL).calibration.samples == len(pictures) // 2


def test_columns_of_texts_are_tokenised_by_the_guard_or_by_the_data(texts, tokenizer, tmp_path):
    from datasets import ClassLabel, Dataset
    from transformers import DataCollatorWithPadding

    model, _ = built(HUB["bert"])
    some, labels = zip(*texts, strict=True)
    data = Dataset.from_dict({"text": list(some), "label": list(labels)})
    data = data.cast_column("label", ClassLabel(names=["weather", "sport"]))
    batch = tokenizer(list(some[:4]), padding=True, return_tensors="pt")
    mapped = data.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"])
    padded = data.map(lambda rows: tokenizer(rows["text"], padding="max_length", max_length=8), batched=True)
    loader = DataLoader(mapped, 16, collate_fn=DataCollatorWithPadding(tokenizer))
    guards = [
        check_guard(model, data, batch, tmp_path, collate=tokenizer),
        check_guard(model, mapped, batch, tmp_path, collate=DataCollatorWithPadding(tokenizer)),
        check_guard(model, mapped, batch, tmp_path, collate=tokenizer),
        check_guard(model, loader, batch, tmp_path),
        check_guard(model, padded.remove_columns(["text"]), batch, tmp_path),
        check_guard(model, padded.remove_columns(["text"]).with_format("torch"), batch, tmp_path),
        check_guard(model, data.to_iterable_dataset(), batch, tmp_path, collate=tokenizer),
    ]
    check_same(guards, batch)


def test_several_splits_at_once_are_refused_by_their_names(texts, tokenizer):
    from datasets import Dataset, DatasetDict

    data = Dataset.from_dict({"text": [text for text, _ in texts], "label": [label for _, label in texts]})
    model, _ = built(HUB["bert"])
    with pytest.raises(TypeError, match=r"data\['train'\]"):
        ff.Guard.fit(model, DatasetDict(train=data, test=data), loading=ff.Loading(collate=tokenizer))

"""A small transformer of three classes of sentences in a folder, with its tokeniser, and files of sentences."""

import csv
import json
import random

import pyarrow as arrow
import torch
from pyarrow.parquet import write_table

TOPICS = {
    "food": ["bread", "soup", "cheese", "apple", "rice"],
    "sport": ["goal", "match", "team", "race", "ball"],
    "weather": ["rain", "wind", "sun", "cloud", "storm"],
}
NEW = ["violin", "piano", "song", "choir", "drum"]
FRAME = ["we", "talk", "about", "the", "and", "some", "too"]
LONGEST = 12  # tokens


def sentences(n, seed=0, words=None):
    """Return sentences of several lengths and the names of their topics; ``words`` are those of another topic."""
    rng, names = random.Random(seed), [*TOPICS]
    rows = []
    for row in range(n):
        name = names[row % 3]
        own = rng.choices(words or TOPICS[name], k=rng.randint(2, 4))
        rows.append((" ".join(rng.sample(own + rng.sample(FRAME, rng.randint(1, 4)), k=len(own) + 1)), name))
    return rows


def write_transformer(folder, max_length=LONGEST):
    """Write a BERT and its tokeniser as ``save_pretrained`` does; words of a topic have embeddings of its class."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *FRAME, *NEW, *(word for topic in TOPICS.values() for word in topic)]
    numbers = {word: number for number, word in enumerate(words)}
    by_word = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    given = {} if max_length is None else {"model_max_length": max_length}
    PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]", **given).save_pretrained(
        folder
    )
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        id2label=dict(enumerate(TOPICS)),
        label2id={name: number for number, name in enumerate(TOPICS)},
    )
    model = BertForSequenceClassification(config).eval()
    _train(model, numbers)
    model.save_pretrained(folder)


def _train(model, numbers):
    """Teach the topics to a network in a few steps."""
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    rows, names = sentences(60, seed=7), [*TOPICS]
    texts = [[numbers[word] for word in text.split()] for text, _ in rows]
    width = max(map(len, texts))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in texts])
    labels = torch.tensor([names.index(name) for _, name in rows])
    for _ in range(25):
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=(ids > 0).long(), labels=labels).loss.backward()
        optimizer.step()


def write_csv(path, rows, header=("text", "label")):
    """Write rows of a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_all(folder, rows):
    """Write the same texts and labels as CSV, JSON lines and parquet, and the texts as plain lines."""
    texts, labels = map(list, zip(*rows, strict=True))
    paths = {kind: folder / f"texts.{kind}" for kind in ("csv", "jsonl", "parquet", "txt")}
    write_csv(paths["csv"], rows)
    lines = (json.dumps({"text": text, "label": label}) for text, label in rows)
    paths["jsonl"].write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    write_table(arrow.table({"text": texts, "label": labels}), paths["parquet"], row_group_size=7)
    paths["txt"].write_text("".join(f"{text}\r\n" for text in texts), encoding="utf-8", newline="")
    return paths

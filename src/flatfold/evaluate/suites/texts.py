"""The built-in suite ``texts``: passages of documentation and a small network, without any download.

The in-distribution (ID) classes are the subjects of six packages: statistics, signals, optimisation, plots, learning
and layers. A passage is a paragraph of a docstring, read from the sources of the installed package. Near-OOD data are
passages about two other subjects; far-OOD data are the licences of these packages, Python code, ID passages with their
words in random order, and random words of the vocabulary. ID passages with the letters of each word in random order are
OOD validation data. Passages change a little with the versions of the packages, and so do the results.
"""

import ast
import hashlib
import importlib.util
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import files as files_of
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.text_files import TextSource, open_texts
from ...io.artifacts import write_tensors
from ...io.cores import torch_threads
from ...io.files import write_atomically
from ...io.progress import track
from .digits import load_weights
from .schema import TEXTS
from .suite import Group, OodSet, Suite

SUBJECTS = {  # of the ID classes, and where they are documented
    "statistics": ("scipy.stats",),
    "signals": ("scipy.signal",),
    "optimisation": ("scipy.optimize",),
    "plots": ("matplotlib",),
    "learning": ("sklearn",),
    "layers": ("torch.nn",),
}
OTHERS = {"matrices": ("scipy.sparse", "scipy.linalg", "scipy.spatial"), "tables": ("pandas.core",)}
LICENSED = ("numpy", "scipy", "matplotlib", "scikit-learn", "torch", "pandas", "pillow")
SPLITS = {"train": 300, "val": 100, "test": 100}  # passages per class
OOD_SIZE = 300
OOD_VAL = "spellings"
FEWEST, MOST = 12, 80  # words of a passage
ENOUGH = 1500  # passages of a subject, of which some are drawn
LETTERS = 0.7  # smallest share of letters in a passage, lest tables and formulas count as text
CODE_LINES = 6

VOCABULARY, LENGTH, WIDTH, FEATURES = 3000, 64, 64, 128
HIDDEN = 0.2  # share of the words of a passage that the network does not see in training
EPOCHS, BATCH, LEARNING_RATE = 12, 64, 2e-3
PAD, UNKNOWN = "[PAD]", "[UNK]"
_WORD = re.compile(r"[a-z]+|\d+|[^\sa-z\d]")

log = logging.getLogger(__name__)


def texts(out: Path, seed: int = 0, batch_size: int = 256) -> Suite:
    """Return the suite; collect its passages and train its network unless ``out`` has them."""
    about: dict[str, tuple[Group, str]] = {
        "matrices": ("near", "Documentation of matrices and distances, subjects that are never shown in training."),
        "tables": ("near", "Documentation of data frames."),
        "licences": ("far", "Paragraphs of the licences of these packages."),
        "code": ("far", "Six lines of Python each, from the same packages."),
        "shuffled": ("far", "ID passages with their words in random order."),
        "words": ("far", "Random words of the vocabulary."),
    }
    folder = out / "data" / f"seed{seed}"
    paths = {name: folder / f"{name}.jsonl" for name in (*SPLITS, *about, OOD_VAL)}
    if not all(path.exists() for path in paths.values()):
        _write(paths, seed)
    rows = [json.loads(line) for line in paths["train"].read_text(encoding="utf-8").splitlines()]
    tokeniser = WordTokeniser(Counter(word for row in rows for word in split_words(row["text"])))
    names = {name: number for number, name in enumerate(SUBJECTS)}
    sources = {
        name: open_texts(path, tokeniser, batch_size, labels=name in SPLITS, classes=names)
        for name, path in paths.items()
    }
    return Suite(
        name=TEXTS,
        about="Passages of the documentation of six subjects are in-distribution, everything else is not.",
        model=trained_reader(sources["train"], sources["val"], out / f"network-seed{seed}.safetensors", seed),
        train=sources["train"],
        val=sources["val"],
        test=sources["test"],
        ood=tuple(OodSet(name, group, sources[name], sentence) for name, (group, sentence) in about.items()),
        seed=seed,
        ood_val=sources[OOD_VAL],
        classes=tuple(SUBJECTS),
    )


def split_words(text: str) -> list[str]:
    """Return the words and other signs of a text in small letters, each number as ``0``.

    Example:
        >>> split_words("Returns 12 arrays.")
        ['returns', '0', 'arrays', '.']
    """
    return ["0" if word[0].isdigit() else word for word in _WORD.findall(text.lower())]


class WordTokeniser:
    """A tokeniser of whole words with the interface of those of transformers."""

    model_input_names = ("input_ids", "attention_mask")
    padding_side = truncation_side = "right"
    model_max_length = LENGTH
    name_or_path = ""  # it cannot be loaded by a name
    pad_token, unk_token = PAD, UNKNOWN
    pad_token_id, unk_token_id, all_special_ids = 0, 1, (0, 1)

    def __init__(self, words: Counter[str]) -> None:
        common = sorted(words, key=lambda word: (-words[word], word))[: VOCABULARY - 2]
        self.words = [PAD, UNKNOWN, *common]
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __call__(self, texts: Sequence[str], max_length: int | None = None, **options: Any) -> dict[str, Tensor]:
        """Return tokens and their mask, padded to the longest text."""
        longest = None if options.get("truncation") is False else max_length or LENGTH
        numbers = [[self._numbers.get(word, 1) for word in split_words(text)][:longest] for text in texts]
        return self.pad([{"input_ids": row} for row in numbers])

    def pad(self, rows: Sequence[dict[str, list[int]]], **options: Any) -> dict[str, Tensor]:
        """Return rows of tokens as one batch."""
        tokens = [row["input_ids"] for row in rows]
        width = max(map(len, tokens))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens]).reshape(len(tokens), width)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in tokens]).reshape(ids.shape)
        return {"input_ids": ids, "attention_mask": mask}

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Return tokens as text."""
        return " ".join(self.words[int(number)] for number in ids)


class Reader(nn.Module):
    """A convolution over embeddings of words, the maximum over their positions, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.convolution = nn.Conv1d(WIDTH, FEATURES, 3, padding=1)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(FEATURES, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of tokens ``(n, words)``; in training, some words are unknown."""
        if self.training:
            hidden = (torch.rand(input_ids.shape, device=input_ids.device) < HIDDEN) & (input_ids > 0)
            input_ids = input_ids.masked_fill(hidden, 1)
        maps = self.convolution(self.words(input_ids).transpose(1, 2)).relu() * attention_mask[:, None]
        logits: Tensor = self.head(self.dropout(maps.amax(dim=2)))
        return logits


def trained_reader(train: TextSource, val: TextSource, path: Path, seed: int) -> nn.Module:
    """Return the network in evaluation mode, from ``path`` if that was trained on the same data, or else train it."""
    with torch_threads(1), torch.random.fork_rng(devices=[]):  # one thread fixes the order of sums
        torch.manual_seed(seed)
        model = Reader(len(SUBJECTS))
        recipe = {"data": train.fingerprint, "seed": seed, "epochs": EPOCHS, "batch": BATCH, "lr": LEARNING_RATE}
        recipe |= {"network": str(model), "hidden": HIDDEN}
        key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        if not load_weights(model, path, key):
            log.info("training the network on %d passages, %d epochs", train.rows, EPOCHS)
            _train(model, *_tokens(train))
            write_tensors(path, key, model.state_dict(), "recipe")
            inputs, labels = _tokens(val)
            with torch.no_grad():
                hits = model.eval()(**inputs).argmax(dim=-1) == labels
            log.info("validation accuracy %.2f %%", 100 * hits.double().mean())
    return model.eval()


def _tokens(source: TextSource) -> tuple[dict[str, Tensor], Tensor]:
    assert source.labels is not None
    return source.tokeniser([source.text(row) for row in range(source.rows)]), source.labels


def _train(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> None:
    steps = len(labels) // BATCH
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=EPOCHS * steps)
    model.train()
    batches = (rows for _ in range(EPOCHS) for rows in torch.split(torch.randperm(len(labels)), BATCH)[:steps])
    for rows in track(batches, "training the network", EPOCHS * steps):
        logits = model(**{name: values[rows] for name, values in inputs.items()})
        loss = nn.functional.cross_entropy(logits, labels[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()


# Passages


def _write(paths: dict[str, Path], seed: int) -> None:
    """Collect all texts of the suite."""
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    splits: dict[str, list[tuple[str, str]]] = {name: [] for name in SPLITS}
    for subject, places in SUBJECTS.items():
        drawn = _draw(_passages(places, rng, seen), sum(SPLITS.values()), rng, subject)
        for name, size in SPLITS.items():
            splits[name] += [(text, subject) for text in drawn[:size]]
            drawn = drawn[size:]
    for name, rows in splits.items():
        _save(paths[name], rows)
    known = [text for text, _ in splits["test"]]
    of_test = [known[row] for row in rng.permutation(len(known))[:OOD_SIZE]]
    of_val = [splits["val"][row][0] for row in rng.permutation(len(splits["val"]))[:OOD_SIZE]]
    words = sorted({word for text, _ in splits["train"] for word in split_words(text) if word.isalpha()})
    lengths = [len(text.split()) for text in of_test]
    everywhere = [place for places in SUBJECTS.values() for place in places]
    others = {
        **{name: _draw(_passages(places, rng, seen), OOD_SIZE, rng, name) for name, places in OTHERS.items()},
        "licences": _draw(_licences(), OOD_SIZE, rng, "licences", fewest=100),
        "code": _draw(_code(everywhere, rng), OOD_SIZE, rng, "code"),
        "shuffled": [" ".join(rng.permutation(text.split())) for text in of_test],
        "words": [" ".join(rng.choice(words, length)) for length in lengths],
        OOD_VAL: [" ".join("".join(rng.permutation(list(word))) for word in text.split()) for text in of_val],
    }
    for name, drawn in others.items():
        _save(paths[name], [(text, "") for text in drawn])


def _save(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    lines = (json.dumps({"text": text} | ({"label": label} if label else {})) for text, label in rows)
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def _draw(found: Sequence[str], size: int, rng: np.random.Generator, name: str, fewest: int | None = None) -> list[str]:
    """Return ``size`` of the texts found, in random order."""
    if len(found) < (fewest or size):
        raise ValueError(
            f"the suite texts needs {fewest or size} texts about {name}, but the installed packages have {len(found)}. "
            "Install the packages again: pip install --force-reinstall 'flatfold[demo]'"
        )
    return [found[row] for row in rng.permutation(len(found))[:size]]


def _sources(places: Sequence[str], rng: np.random.Generator) -> Iterator[str]:
    """Yield the content of the Python files of packages, in random order and without tests."""
    files = []
    for place in places:
        package, *below = place.split(".")
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"the suite texts reads the documentation of {package}, which is not installed. "
                "Run: pip install 'flatfold[demo]'",
                name=package,
            )
        files += sorted(Path(spec.origin).parent.joinpath(*below).rglob("*.py"))
    for row in rng.permutation(len(files)):
        if not any(part.startswith(("test", "_test", "conftest")) for part in files[row].parts):
            yield files[row].read_text(encoding="utf-8", errors="replace")


def _passages(places: Sequence[str], rng: np.random.Generator, seen: set[str]) -> list[str]:
    """Return paragraphs of docstrings that are prose and are not ``seen``, to which they are added."""
    found: list[str] = []
    for source in _sources(places, rng):
        if len(found) >= ENOUGH:
            break
        documented = ast.Module, ast.ClassDef, ast.FunctionDef
        nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
        for paragraph in (part for node in nodes for part in re.split(r"\n\s*\n", ast.get_docstring(node) or "")):
            text = " ".join(paragraph.split())
            if text not in seen and is_prose(text):
                seen.add(text)
                found.append(text)
    return found


def is_prose(text: str) -> bool:
    """Return whether a paragraph consists of sentences.

    Example:
        >>> is_prose("Compute the mean of the array along the given axis, as in the function of that name.")
        True
        >>> is_prose(">>> mean([1, 2, 3])")
        False
    """
    words = re.findall(r"[A-Za-z]+", text)
    marks = any(mark in text for mark in (">>>", "---", "===", "::", ".. "))
    letters = sum(map(len, words)) >= LETTERS * len(text.replace(" ", ""))
    return not marks and letters and text.endswith(".") and FEWEST <= len(words) <= MOST


def _licences() -> list[str]:
    """Return the paragraphs of the licences of the packages."""
    found: dict[str, None] = {}
    for package in LICENSED:
        for file in files_of(package) or ():
            if "dist-info" in str(file) and re.search("licen[cs]e|copying|notice", file.name, re.IGNORECASE):
                content = file.locate().read_text(encoding="utf-8", errors="replace")  # type: ignore[attr-defined]
                texts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", content))
                found |= dict.fromkeys(text for text in texts if is_prose(text))
    return list(found)


def _code(places: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return some neighbouring lines of Python of each file."""
    found = []
    for source in _sources(places, rng):
        lines = [line for line in source.splitlines() if "=" in line or line.rstrip().endswith(":")]
        if len(lines) >= CODE_LINES:
            first = int(rng.integers(len(lines) - CODE_LINES + 1))
            found.append("\n".join(lines[first : first + CODE_LINES]))
        if len(found) >= OOD_SIZE:
            break
    return found

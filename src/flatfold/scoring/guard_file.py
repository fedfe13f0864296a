"""Guard files: one safetensors file with the settings as JSON in its header. Nothing in it is executed.

A file holds :class:`Settings` and these tensors: ``detector.*``, the fitted state; ``calibration.scores`` and
``calibration.counts``; ``probe.features`` and ``probe.scores``, the self-test; ``evidence.features``, which identify
the model (:mod:`flatfold.network.evidence`). Files are validated before use: checksum, dtypes, shapes and order of all
tensors, and the self-test. This detects damage, mixtures and other versions; anyone who can
write the file can write another guard, so accept files only from people you trust, as with models.

The self-test: features that were scored when the file was written are scored again when it is read. A checksum detects
changed bytes; the self-test also detects mixtures of two files, and a version or machine that computes other scores
from the same tensors. The features are computed from the weights of the head, so they reveal nothing about any input.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor, nn

from .. import __version__
from ..core.bank import Head
from ..core.validation import FLOATS
from ..data.loading import Loading
from ..data.texts import NotStored, Tokeniser, TokeniserSpec
from ..data.transform import InputSizes, Transform
from ..detectors import METHODS, create
from ..detectors.base import Detector
from ..errors import brief
from ..io.artifacts import checksum, decode, read_tensors, write_tensors
from ..network.calls import evaluating, linear_layer
from ..network.dense import Dense
from ..network.evidence import INPUTS, Evidence, InputSpec
from ..network.fingerprint import weights_hash
from ..network.heads import FoundHead, module_named
from ..network.network import Network
from ..network.relations import Inner, Linear, Relation, relation_of
from .calibrated import CalibratedDetector, Calibration
from .positions import Images

TYPES = (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool)
MIXED_PRECISION = {"": None, "bfloat16": torch.bfloat16}
QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent
MOST_BRACKETS = 10_000  # in the settings; each costs some ten times the memory of its character
MOST_PIXELS = 2**16  # per side of an image
LONGEST = 200  # characters of an error that quotes another
STATE = "detector."  # the names of a detector's tensors begin with this
PROBES = 8  # rows of the self-test, chosen from several classes in several sizes
PROBE_CLASSES, PROBE_SIZES = 8, 16
NARROWEST, WIDEST = 1.0, 40.0  # distance of the largest and the smallest logit; float32 holds e^-40 on every machine
NUDGE = 1e-6  # rounding error of float32 in a sum of thousands of products
TOLERANCE = 1e-5  # relative, of the scores of the self-test
OTHERS = {"calibration.scores", "calibration.counts", "probe.features", "probe.scores"}
EVIDENCE = "evidence.features"
IMAGES = "calibration.images"

log = logging.getLogger(__name__)


class EvidenceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs of the model's evidence; its features are stored as a tensor."""

    inputs: InputSpec
    rows: list[int]
    device: str


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The settings in a guard's file; ``calibration`` to ``thresholds`` are derived from the tensors."""

    FORMAT: ClassVar[str] = "flatfold-guard"
    VERSION: ClassVar[int] = 2

    flatfold: str
    detector: str
    hyper: dict[str, Any]
    dtype: str
    gives_logits: bool
    head: str
    transform: dict[str, Any] | None
    weights_sha256: str
    calibration: dict[str, Any]
    classes: int
    features: int
    fpr: float
    head_sha256: str
    per_class: bool
    thresholds: list[float]
    sha256: str = ""
    mixed_precision: str = ""  # dtype of mixed precision, if used
    input_shape: list[int] | None = None
    confidence: float | None = None
    above: int = 0  # scores of the calibration that are larger than all others and not stored
    evidence: EvidenceSettings | None = None
    input_sizes: tuple[list[int], list[int]] | None = None  # smallest and largest, if shapes differ
    tokeniser: TokeniserSpec | None = None
    collate: str = ""  # name of what joined inputs into batches, if that cannot be stored
    labels: str = ""  # name of the column of labels, if the user gave it
    pixels: int = 0  # drawn from each image, of guards for every position
    level: float = 0.0  # of their quantile that is the number of an image
    relation: dict[str, Any] | None = None  # of layers and logits, unless the logits are the output of one layer


@dataclass(frozen=True)
class GuardFile:
    """Validated content of a guard's file, from :func:`read_guard`. When unpickled, the file is read again."""

    path: Path
    calibrated: CalibratedDetector
    loading: Loading
    settings: Settings
    evidence: Evidence | None = None
    images: Images | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_again, (self.path, self.settings.sha256)

    @property
    def transform(self) -> Transform | None:
        """Preprocessing of images for the model, if known."""
        transform: Transform | None = self.loading.transform
        return transform

    def complete(self, loading: Loading | None) -> Loading:
        """Return the settings for loading data of a user, with those of the file where they are silent."""
        if loading is None:
            return self.loading
        own = self.loading
        if None not in (own.transform, loading.transform) and own.transform != loading.transform:
            raise ValueError(
                f"{self.path} stores the transform that the guard was calibrated with, {own.transform}, and loading= "
                f"has another one, {loading.transform}. Leave it out."
            )
        collate = own.collate if loading.collate is None else loading.collate
        return replace(
            loading, transform=loading.transform or own.transform, collate=collate, labels=loading.labels or own.labels
        )

    @property
    def sizes(self) -> InputSizes | None:
        """Range of input sizes seen during calibration, None if unknown."""
        shape, transform = self.settings.input_shape, self.transform
        if self.settings.input_sizes is not None:
            return InputSizes(*map(tuple, self.settings.input_sizes))
        if shape is None and transform is not None and transform.crop is not None:
            shape = [len(transform.mode), transform.crop, transform.crop]
        return None if shape is None else InputSizes(tuple(shape), tuple(shape))

    @property
    def relation(self) -> Relation:
        """How the logits of the model come out of its layers."""
        return _make_relation(self.settings)

    def match(self, model: nn.Module) -> Network:
        """Return ``model`` as the network of this guard; raise if the file was made for another model."""
        settings = self.settings
        with evaluating(model):
            layers: dict[str, nn.Module] = {}
            for name in self.relation.layers:
                layer = module_named(model, name)
                if layer is None or linear_layer(layer) is None:
                    raise self._mismatch(f"with a last layer {ascii(name)[:60]}", "has none")
                layers[name] = layer
            found = FoundHead.of(self.relation, layers)
            if (dtype := _name_of(found.dtype)) != settings.dtype:
                raise self._mismatch(f"in {ascii(settings.dtype)[:60]}", f"is in {dtype!r}")
            head = found.head
            if (head.n_classes, head.width) != (settings.classes, settings.features):
                raise self._mismatch(
                    f"with {settings.classes} classes and {settings.features} features",
                    f"has {head.n_classes} and {head.width}",
                )
            if weights_hash(model) != settings.weights_sha256 or head_hash(head) != settings.head_sha256:
                raise self._mismatch("with other weights", "does not match them")
        shape, sizes = settings.input_shape, self.sizes
        network = Network(
            model,
            found,
            MIXED_PRECISION[settings.mixed_precision],
            weights=settings.weights_sha256,
            inputs=None if self.evidence is None else self.evidence.inputs,
            shape=tuple(shape) if shape is not None else None if sizes is None else sizes.least,
            sizes=sizes,
            evidence=self.evidence,
        )
        self._check_evidence(network)
        return network

    def _check_evidence(self, network: Network) -> None:
        """Raise if a model with matching weights computes something else with them."""
        if self.evidence is None:
            log.warning("%s stores no evidence of what its model computes: only the weights were compared", self.path)
            return
        try:
            difference = self.evidence.difference(network.model, network.found, network.dtype)
        except Exception as error:  # a network may raise anything for unexpected inputs
            text = " ".join(str(error).split())[:LONGEST].rstrip(".")
            raise self._mismatch("with other inputs", f"rejects them: {text}") from error
        if difference:
            raise ValueError(
                f"{self.path} was made for a model that computes something else with the same weights: for the same "
                f"inputs, features differ by {100 * difference:.2g} % of their norm. Build the model as it was for the "
                "guard (activations, settings of layers such as eps, scaling of inputs, buffers that are not saved "
                "with the weights), or fit a new guard."
            )

    def _mismatch(self, needed: str, found: str) -> ValueError:
        return ValueError(
            f"{self.path} was made for a model {needed}, this one {found}. "
            "Load the model that the guard was fitted on, with its weights and dtype, or fit a new guard."
        )


def read_guard(path: Path) -> GuardFile:
    """Read and validate a guard's file, to score features or, with ``Guard.load``, inputs of its model."""
    with _errors_about(path):
        text, tensors = read_tensors(path, name="guard")
        if text.count("[") + text.count("{") > MOST_BRACKETS:
            raise ValueError(f"its JSON has more than {MOST_BRACKETS} lists and objects")
        settings = decode(text, Settings)
        if settings.mixed_precision not in MIXED_PRECISION:
            raise ValueError(f"its mixed precision {ascii(settings.mixed_precision)[:60]} is not supported")
        if _text(settings) != text:  # duplicate keys, non-finite numbers, other white space
            raise ValueError("its settings are not in canonical form")
        if checksum(_text(msgspec.structs.replace(settings, sha256="")), tensors) != settings.sha256:
            raise ValueError("its checksum does not match its content: it was changed or truncated")
        _check_tensors(tensors, settings)
        detector = _make_detector(settings)
        state = {name.removeprefix(STATE): value for name, value in tensors.items() if name.startswith(STATE)}
        detector.load_state_dict(state, assign=True)  # a bank of features is not copied
        scores, counts = tensors["calibration.scores"], tensors["calibration.counts"]
        calibrated = CalibratedDetector(detector, _make_calibration(scores, counts, settings))
        for name, value in _derived_settings(calibrated).items():
            if getattr(settings, name) != value:
                raise ValueError(f"the setting {name} does not match its tensors")
        check_probes(calibrated, tensors["probe.features"], tensors["probe.scores"])
        evidence = None
        if settings.evidence is not None:
            kept = settings.evidence
            evidence = Evidence(kept.inputs, kept.rows, kept.device, tensors[EVIDENCE])
        images = _make_images(tensors.get(IMAGES), settings)
        if isinstance(_make_relation(settings), Dense) != (images is not None):
            raise ValueError("its relation and its calibration do not match")
        return GuardFile(path, calibrated, _make_loading(settings), settings, evidence, images)


def save_guard(
    path: Path, network: Network, calibrated: CalibratedDetector, loading: Loading, images: Images | None = None
) -> None:
    """Write a guard to ``path`` atomically; the same guard yields the same bytes.

    ``images`` is the calibration of images as a whole, of a guard for every position.
    """
    if path.is_dir():
        raise IsADirectoryError(f"a guard is one file, but {path} is a folder. Try {path / 'guard.safetensors'}.")
    if any(buffer.device.type != "cpu" for buffer in calibrated.buffers()):
        calibrated = deepcopy(calibrated).cpu()  # the original is not moved
    detector, calibration = calibrated.detector, calibrated.calibration
    if detector.made_by is None:
        raise ValueError(
            f"only detectors made by name can be saved, but this {type(detector).__name__} was constructed directly. "
            'Make it with create("...") and fit the guard again.'
        )
    try:
        _check_calibration(calibration.scores, calibration.counts)
    except ValueError as error:
        raise ValueError(f"this guard cannot be saved: {error}. Check the calibration inputs.") from error
    name, hyper = detector.made_by
    try:
        plain = json.loads(canonical(hyper))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "only hyper-parameters that are finite numbers, strings, True, False, None or lists of them can be saved, "
            f"but {name} has others: {error}. Fit the guard with plain values."
        ) from error
    found, evidence, shape, sizes = network.found, network.evidence, network.shape, network.sizes
    tokeniser = None if loading.collate is None else _store_tokeniser(loading.collate)
    settings = Settings(
        flatfold=__version__,
        detector=name,
        hyper=plain,
        dtype=_name_of(found.dtype),
        gives_logits=found.gives_logits,
        head=found.name,
        transform=None if loading.transform is None else loading.transform.as_dict(),
        weights_sha256=network.weights,
        mixed_precision=next(name for name, value in MIXED_PRECISION.items() if value == network.dtype),
        input_shape=None if shape is None else list(shape),
        evidence=None if evidence is None else EvidenceSettings(evidence.inputs, evidence.rows, evidence.device),
        input_sizes=None if sizes is None or sizes.least == sizes.most else (list(sizes.least), list(sizes.most)),
        tokeniser=tokeniser,
        collate=_collate_name(loading.collate) if tokeniser is None else "",
        labels=loading.labels or "",
        pixels=0 if images is None else images.pixels,
        level=0.0 if images is None else images.level,
        relation=None if isinstance(found.relation, (Linear, Inner)) else found.relation.settings(),
        **_derived_settings(calibrated),
    )
    tensors = {f"{STATE}{key}": value for key, value in detector.state_dict().items()}
    for key, value in tensors.items():
        if (kind := value.dtype if isinstance(value, Tensor) else type(value).__name__) not in TYPES:
            raise ValueError(
                f"tensors in a file must be {', '.join(map(str, TYPES))}, but {key} is {kind}. Convert it in the "
                "method."
            )
    tensors |= {"calibration.scores": calibration.scores, "calibration.counts": calibration.counts}
    tensors["probe.features"], tensors["probe.scores"] = make_probes(calibrated, fitted_head(calibrated))
    if evidence is not None:
        tensors[EVIDENCE] = evidence.features
    if images is not None:
        tensors[IMAGES] = images.calibration.scores[0].cpu()
    settings = msgspec.structs.replace(settings, sha256=checksum(_text(settings), tensors))
    write_tensors(path, _text(settings), tensors, name="guard")


@torch.no_grad()
def make_probes(calibrated: CalibratedDetector, head: Head) -> tuple[Tensor, Tensor]:
    """Return ``PROBES`` rows of features and their scores, ``(8, d)`` and ``(8,)``, the same for the same detector.

    Candidates whose score is discontinuous are excluded: rounding on another machine might change it.
    """
    rows = probe_candidates(head)
    scores = calibrated(rows)[0]
    moved = calibrated(rows * (1 + NUDGE * torch.linspace(-1, 1, rows.shape[1]).to(rows)))[0]
    steady = scores.isfinite() & ((moved - scores).abs() <= TOLERANCE / 2 * _scale(scores))
    if int(steady.sum()) < PROBES:
        raise ValueError(
            f"the self-test of a file needs {PROBES} rows of features with a stable, finite score, but this detector "
            f"has {int(steady.sum())} among {len(rows)} candidates. Check its hyper-parameters."
        )
    features = rows[steady][_spread_out(scores[steady])].contiguous()
    return features, calibrated(features)[0]


@torch.no_grad()
def check_probes(calibrated: CalibratedDetector, features: Tensor, scores: Tensor) -> None:
    """Raise unless a detector reproduces these scores of probes, up to float32 rounding."""
    again, scale = calibrated(features)[0], _scale(scores)
    error = (again - scores).abs()
    if not (error <= TOLERANCE * scale).all():  # a NaN is not a score either
        worst = int((error / scale).nan_to_num(torch.inf).argmax())
        raise ValueError(
            f"its detector returns a score of {float(again[worst]):.7g}, but returned {float(scores[worst]):.7g} when "
            "the file was written"
        )


def canonical(value: Any) -> str:
    """Serialise a value to canonical JSON with sorted keys; raise if it is not serialisable or not finite."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def fitted_head(calibrated: CalibratedDetector) -> Head:
    """Return the head that a detector was fitted with."""
    return Head(calibrated.detector.fitted_weight, calibrated.detector.innermost._buffers.get("bias"))


def head_hash(head: Head) -> str:
    """Return the sha256 of the types, shapes and bytes of a head's weight and bias."""
    digest = hashlib.sha256()
    for values in (head.weight, head.bias):
        digest.update(b"none" if values is None else f"{values.dtype} {tuple(values.shape)}\n".encode())
        if values is not None:
            digest.update(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_again(path: Path, sha256: str) -> GuardFile:
    file = read_guard(path)
    if file.settings.sha256 != sha256:
        raise ValueError(f"{path} holds another guard than when this run started. Start it again.")
    return file


def _text(settings: Settings) -> str:
    kind = {"format": settings.FORMAT, "version": settings.VERSION}
    return canonical(kind | msgspec.to_builtins(settings))


def _make_calibration(scores: Tensor, counts: Tensor, settings: Settings) -> Calibration:
    """Create the calibration, whose numbers must fit together."""
    if settings.above < 0 or bool((counts % (settings.above + 1)).any()):
        raise ValueError("the counts of its calibration must be multiples of above + 1")
    return Calibration(scores, counts, settings.fpr, settings.confidence, settings.above)


def _make_images(numbers: Tensor | None, settings: Settings) -> Images | None:
    """Create the calibration of images as a whole; None for a guard of whole inputs."""
    if numbers is None:
        return None
    if not 0 < settings.level < 1 or settings.pixels < 1 or numbers.ndim != 1:
        raise ValueError("the calibration of its images is not valid")
    scores, counts = numbers[None], torch.tensor([len(numbers)])
    _check_calibration(scores, counts)
    return Images(settings.pixels, settings.level, Calibration(scores, counts, settings.fpr))


def _derived_settings(calibrated: CalibratedDetector) -> dict[str, Any]:
    """Return the settings derived from the tensors, for people and programs that only read the header."""
    calibration, head = calibrated.calibration, fitted_head(calibrated)
    counts = calibration.counts.tolist()
    scores = torch.cat([row[:count] for row, count in zip(calibration.scores, counts, strict=True)]).sort().values
    quantiles = {str(percent): scores[percent * (len(scores) - 1) // 100].item() for percent in QUANTILES}
    summary = {"samples": len(scores), "least": min(counts), "most": max(counts), "quantiles": quantiles}
    return {
        "above": calibration.above,
        "calibration": summary,
        "classes": head.n_classes,
        "confidence": calibration.confidence,
        "features": head.width,
        "fpr": calibration.fpr,
        "head_sha256": head_hash(head),
        "per_class": calibration.per_class,
        "thresholds": calibration.threshold.tolist(),
    }


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_tensors(tensors: Mapping[str, Tensor], settings: Settings) -> None:
    """Raise unless all tensors are present, with consistent dtypes and shapes."""
    others = OTHERS if settings.evidence is None else OTHERS | {EVIDENCE}
    others = others | {IMAGES} if settings.pixels else others
    if missing := sorted(others - set(tensors)):
        raise ValueError(f"the tensor {missing[0]!r} is missing")
    for name, tensor in tensors.items():
        if name not in others and not name.startswith(STATE):
            raise ValueError(f"the tensor {ascii(name)[:60]} is unknown")
        if tensor.dtype not in TYPES:
            raise ValueError(f"{ascii(name)[:60]} must be one of {', '.join(map(str, TYPES))}")
    scores, counts = tensors["calibration.scores"], tensors["calibration.counts"]
    _check_calibration(scores, counts)
    if len(counts) not in (1, settings.classes):
        raise ValueError(
            f"it has calibration scores of {len(counts)} groups, and a model with {settings.classes} classes has 1 or "
            f"{settings.classes}"
        )
    features, probe_scores = tensors["probe.features"], tensors["probe.scores"]
    if features.shape != (PROBES, settings.features) or probe_scores.shape != (PROBES,):
        raise ValueError(f"its self-test must have {PROBES} rows of {settings.features} features")
    if scores.dtype not in FLOATS or features.dtype != scores.dtype or probe_scores.dtype != scores.dtype:
        raise ValueError("its scores must have one dtype, float32 or float64")
    if settings.evidence is not None:
        rows, kept = settings.evidence.rows, tensors[EVIDENCE]
        known = rows and rows == sorted(set(rows) & set(range(INPUTS)))
        if not known or kept.shape != (len(rows), settings.features) or kept.dtype not in FLOATS:
            raise ValueError("the evidence of its model must have a row of features for each of its inputs")


def _check_calibration(scores: Tensor, counts: Tensor) -> None:
    """Raise unless scores ``(g, m)`` are sorted, with ``counts`` ``(g,)`` finite values followed by infinity."""
    if scores.ndim != 2 or counts.shape != scores.shape[:1] or counts.dtype != torch.int64 or counts.numel() == 0:
        raise ValueError("its calibration must have one row of scores and one count per group")
    if int(counts.min()) < 1 or int(counts.max()) != scores.shape[1]:
        raise ValueError("its calibration counts must go from 1 to the length of the longest row")
    counted = torch.arange(scores.shape[1], device=scores.device) < counts.to(scores.device)[:, None]
    if not torch.equal(scores.isfinite(), counted) or not (scores[~counted] == torch.inf).all():
        raise ValueError("its calibration scores must be finite, as many as counted")
    if not (scores[:, 1:] >= scores[:, :-1]).all():
        raise ValueError("its calibration scores are not sorted")


def _make_detector(settings: Settings) -> Detector:
    """Create the unfitted detector of the settings; only registered methods on features are allowed."""
    name, hyper = settings.detector, settings.hyper
    if name not in METHODS or METHODS[name].sees != "features":
        raise ValueError(
            f"its method {ascii(name)[:60]} is not registered as a method on features. Register your own methods "
            "before the guard is loaded"
        )
    if {"name", "preset"} & set(hyper):
        raise ValueError("its hyper-parameters have reserved names")
    detector = create(name, **hyper)
    if not isinstance(detector, Detector) or detector.made_by is None:
        raise ValueError(f"{name} does not create a detector on features")
    if canonical(detector.made_by[1]) != canonical(hyper):
        raise ValueError(f"its hyper-parameters do not match those of {name}")
    return detector


def _store_tokeniser(collate: Any) -> TokeniserSpec | None:
    """Return what the file holds of a ``collate``; None if it is a function, or a tokeniser without a name."""
    tokeniser = Tokeniser.of(collate)
    return None if tokeniser is None else tokeniser.spec()


def _collate_name(collate: Any) -> str:
    """Return the name of a ``collate`` that is not stored, for an error message; empty if there is none."""
    if collate is None:
        return ""
    if isinstance(collate, NotStored):
        return collate.name
    return str(getattr(collate, "__name__", type(collate).__name__))[:LONGEST]


def _make_loading(settings: Settings) -> Loading:
    """Return how a guard prepares data."""
    collate: Tokeniser | NotStored | None = NotStored(settings.collate) if settings.collate else None
    if settings.tokeniser is not None:
        collate = Tokeniser.stored(settings.tokeniser)
    return Loading(_make_transform(settings.transform), collate, labels=settings.labels or None)


def _make_transform(values: dict[str, Any] | None) -> Transform | None:
    if values is None:
        return None
    transform = Transform(**values)
    too_large = max(transform.resize or 0, transform.crop or 0) > MOST_PIXELS
    if too_large or canonical(transform.as_dict()) != canonical(values):
        raise ValueError("its transform is not valid")
    return transform


def _make_relation(settings: Settings) -> Relation:
    if settings.relation is None:
        return (Linear if settings.gives_logits else Inner)((settings.head,))
    relation = relation_of(settings.relation)
    if canonical(relation.settings()) != canonical(settings.relation) or ",".join(relation.layers) != settings.head:
        raise ValueError("its relation between layers and logits is not valid")
    return relation


def probe_candidates(head: Head) -> Tensor:
    """Return synthetic features that resemble those of several classes, at several norms; all entries are positive.

    A class contributes the positive part of its weights plus noise above 0.05, so that no two entries are equal and
    the order of ties does not matter. Norms are such that the largest and the smallest logit differ by 1 to 40.
    """
    weight = head.weight.cpu()
    chosen = torch.linspace(0, head.n_classes - 1, min(PROBE_CLASSES, head.n_classes), device="cpu").long()
    towards = weight[chosen].relu()
    smallest = torch.finfo(weight.dtype).tiny
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(towards.shape, generator=generator, dtype=weight.dtype, device="cpu") + 0.05
    rows = towards / towards.mean(dim=-1, keepdim=True).clamp_min(smallest) + noise
    logits = rows @ weight.mT
    span = logits.amax(dim=-1, keepdim=True) - logits.amin(dim=-1, keepdim=True)
    rows = rows / torch.where(span > smallest, span, 1.0)
    steps = torch.linspace(0, 1, PROBE_SIZES, dtype=weight.dtype, device="cpu")
    sizes = NARROWEST * (WIDEST / NARROWEST) ** steps
    return (rows[:, None] * sizes[:, None]).flatten(0, 1)


def _scale(scores: Tensor) -> Tensor:
    """Return the scale for relative errors of scores, bounded below: scores near 0 need no higher precision."""
    sizes = scores.abs()
    return torch.maximum(sizes, sizes.nan_to_num(0.0, posinf=0.0).amax() / 10)


def _spread_out(scores: Tensor) -> Tensor:
    """Return the positions of ``PROBES`` scores, half evenly spaced by rank and half by value.

    Scores at their bound do not depend on the learnt state, so ranks alone are not enough.
    """
    order = scores.argsort(stable=True)
    ordered = scores[order]
    half = PROBES // 2
    by_rank = ordered[torch.linspace(0, len(scores) - 1, half).long()]
    low, high = ordered[0], ordered[-1]
    by_value = low + (high - low) * (torch.arange(half).to(scores) + 0.5) / half
    taken: list[int] = []
    for target in torch.cat([by_rank, by_value]):
        nearest = (ordered - target).abs().argsort(stable=True).tolist()
        taken.append(next(place for place in nearest if place not in taken))
    return order[torch.tensor(sorted(taken))]


@contextmanager
def _errors_about(path: Path) -> Iterator[None]:
    """Convert every error that the content of a file may cause to a ``ValueError`` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"no guard at {path}. Check the path.") from None
    except PermissionError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be used as a guard: {brief(error, LONGEST)}. Check the path, or fit and save the guard "
            "again."
        ) from error

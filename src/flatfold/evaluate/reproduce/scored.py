"""Scores of every judged data set by a method with given hyper-parameters, and what they come to in each column."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.delong import Influence
from ...core.ranking import fpr_at_tpr
from ...detectors import create
from ..banks import Banks
from ..certainty import column_influence
from ..results import ID
from ..study.features import FeatureCurvature

ALL = "all"
Scores = dict[str, NDArray[np.float32]]


@torch.no_grad()
def scored(name: str, banks: Banks, **hyper: Any) -> Scores:
    """Return the scores of a method that sees features and learns from validation data at most, by data set.

    Args:
        name: In the registry.
        banks: Features; ``id`` stands for the known test images.
        **hyper: Hyper-parameters of the method.
    """
    detector = create(name, **hyper).fit(banks.val, banks.head).eval()
    return {dataset: detector(bank.features).float().numpy() for dataset, bank in banks.judged.items()}


def logit_traces(banks: Banks, alpha: float) -> Scores:
    """Return the trace of the logit Hessian at partially normalised features, by data set; over features it is FOLD.

    Args:
        banks: Features; ``id`` stands for the known test images.
        alpha: The exponent.
    """
    judged = {name: FeatureCurvature(bank, banks.head) for name, bank in banks.judged.items()}
    return {name: curvature.traces("logit", alpha).astype(np.float32) for name, curvature in judged.items()}


def columns(scores: Mapping[str, NDArray[np.floating]]) -> dict[str, tuple[str, ...]]:
    """Return the data sets behind each column: every unknown one by itself, and ``all`` of them."""
    unknown = tuple(dataset for dataset in scores if dataset != ID)
    return {**{dataset: (dataset,) for dataset in unknown}, ALL: unknown}


def influences(scores: Mapping[str, NDArray[np.floating]]) -> dict[str, Influence]:
    """Return the AUROC in every column with the influence of every image, which makes paired intervals possible."""
    named = {f"/{dataset}": values for dataset, values in scores.items()}
    return {column: column_influence(named, "", members) for column, members in columns(scores).items()}


def fpr95(scores: Mapping[str, NDArray[np.floating]]) -> dict[str, float]:
    """Return the FPR95 in every column, unknown inputs as the positive class."""
    single = {dataset: fpr_at_tpr(scores[ID], scores[dataset]) for dataset in _unknown(scores)}
    return {**single, ALL: fmean(single.values())}


def _unknown(scores: Mapping[str, NDArray[np.floating]]) -> Iterator[str]:
    return (dataset for dataset in scores if dataset != ID)

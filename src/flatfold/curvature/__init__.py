"""Curvature of a network's loss over its parameters, its features and its logits.

Functions over parameters take a model and batches; functions over features and logits take class weights and logits.
Results are exact where possible; every estimate comes with a standard error or a bound.
"""

from .eigenvalues import param_lambda_max, param_spectrum
from .estimate import Density, Estimate, Spectrum
from .features import (
    feature_eigenvalues,
    feature_lambda_max,
    feature_shares,
    feature_spectrum,
    feature_trace,
    logit_eigenvalues,
    logit_lambda_max,
    logit_spectrum,
    logit_trace,
)
from .trace import param_trace

__all__ = [
    "Density",
    "Estimate",
    "Spectrum",
    "feature_eigenvalues",
    "feature_lambda_max",
    "feature_shares",
    "feature_spectrum",
    "feature_trace",
    "logit_eigenvalues",
    "logit_lambda_max",
    "logit_spectrum",
    "logit_trace",
    "param_lambda_max",
    "param_spectrum",
    "param_trace",
]

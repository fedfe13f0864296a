"""One file per method. Importing this package fills the registry."""

from . import ash, autofold, ebo, fold, mls, msp, react
from .registry import METHODS, create, get_method, hyperparameters, methods, register

__all__ = [
    "METHODS",
    "ash",
    "autofold",
    "create",
    "ebo",
    "fold",
    "get_method",
    "hyperparameters",
    "methods",
    "mls",
    "msp",
    "react",
    "register",
]

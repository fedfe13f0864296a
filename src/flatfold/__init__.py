"""Out-of-distribution detection for any PyTorch classifier, from the curvature of its energy.

This page is the public interface. Names are resolved when they are first used, so that ``import flatfold`` costs
nothing: torch is only imported once something needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.bank import FeatureBank as FeatureBank
    from .core.errors import DamagedBank as DamagedBank
    from .core.errors import NotFittedError as NotFittedError
    from .core.errors import UnreadableImage as UnreadableImage
    from .core.errors import UnsupportedHead as UnsupportedHead
    from .core.head import Head as Head
    from .core.ranking import aupr as aupr
    from .core.ranking import auroc as auroc
    from .core.ranking import fpr_at_tpr as fpr_at_tpr
    from .detectors import create as create
    from .detectors import methods as methods
    from .detectors import register as register
    from .detectors.ash import Ash as Ash
    from .detectors.autofold import AutoFold as AutoFold
    from .detectors.base import Detector as Detector
    from .detectors.ebo import Ebo as Ebo
    from .detectors.fold import Fold as Fold
    from .detectors.mls import Mls as Mls
    from .detectors.msp import Msp as Msp
    from .detectors.normalise import PartialNorm as PartialNorm
    from .detectors.react import ReAct as ReAct
    from .detectors.shaped import Shaped as Shaped
    from .models.extract import extract as extract
    from .models.images import FolderImages as FolderImages
    from .models.images import NpzImages as NpzImages
    from .models.images import Transform as Transform
    from .models.store import load_bank as load_bank
    from .models.store import save_bank as save_bank
    from .scoring.guard import Guard as Guard

__version__ = "0.1.0"

_HOMES = {
    "Ash": "detectors.ash",
    "AutoFold": "detectors.autofold",
    "DamagedBank": "core.errors",
    "Detector": "detectors.base",
    "Ebo": "detectors.ebo",
    "FeatureBank": "core.bank",
    "Fold": "detectors.fold",
    "FolderImages": "models.images",
    "Guard": "scoring.guard",
    "Head": "core.head",
    "Mls": "detectors.mls",
    "Msp": "detectors.msp",
    "NotFittedError": "core.errors",
    "NpzImages": "models.images",
    "PartialNorm": "detectors.normalise",
    "ReAct": "detectors.react",
    "Shaped": "detectors.shaped",
    "Transform": "models.images",
    "UnreadableImage": "core.errors",
    "UnsupportedHead": "core.errors",
    "aupr": "core.ranking",
    "auroc": "core.ranking",
    "create": "detectors",
    "extract": "models.extract",
    "fpr_at_tpr": "core.ranking",
    "load_bank": "models.store",
    "methods": "detectors",
    "register": "detectors",
    "save_bank": "models.store",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

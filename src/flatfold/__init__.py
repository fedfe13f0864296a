"""Out-of-distribution detection for any PyTorch classifier, from the curvature of its energy.

This page is the public interface. Names are resolved when they are first used, so that ``import flatfold`` costs
nothing: torch is only imported once something needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import curvature as curvature
    from .core.bank import FeatureBank as FeatureBank
    from .core.bank import Head as Head
    from .core.intervals import auroc_interval as auroc_interval
    from .core.metrics import aupr as aupr
    from .core.metrics import auroc as auroc
    from .core.metrics import fpr_at_tpr as fpr_at_tpr
    from .core.validation import NotFittedError as NotFittedError
    from .core.validation import UnreadableImage as UnreadableImage
    from .core.validation import UnsupportedHead as UnsupportedHead
    from .detectors import create as create
    from .detectors import methods as methods
    from .detectors import register as register
    from .detectors.ash import Ash as Ash
    from .detectors.autofold import AutoFold as AutoFold
    from .detectors.base import Detector as Detector
    from .detectors.base import InputDetector as InputDetector
    from .detectors.dice import Dice as Dice
    from .detectors.ebo import Ebo as Ebo
    from .detectors.fdbd import Fdbd as Fdbd
    from .detectors.fold import Fold as Fold
    from .detectors.fold_t import FoldT as FoldT
    from .detectors.gen import Gen as Gen
    from .detectors.gradnorm import GradNorm as GradNorm
    from .detectors.klm import Klm as Klm
    from .detectors.knn import Knn as Knn
    from .detectors.mds import Mds as Mds
    from .detectors.mdsens import MdsEns as MdsEns
    from .detectors.mls import Mls as Mls
    from .detectors.msp import Msp as Msp
    from .detectors.nci import Nci as Nci
    from .detectors.nnguide import NNGuide as NNGuide
    from .detectors.norm_cap import NormCap as NormCap
    from .detectors.odin import Odin as Odin
    from .detectors.openmax import OpenMax as OpenMax
    from .detectors.react import ReAct as ReAct
    from .detectors.rmds import Rmds as Rmds
    from .detectors.scale import Scale as Scale
    from .detectors.shaped import PartialNorm as PartialNorm
    from .detectors.shaped import Shaped as Shaped
    from .detectors.she import She as She
    from .detectors.tempscale import TempScale as TempScale
    from .detectors.vim import Vim as Vim
    from .evaluate.tuning import tune as tune
    from .models.bank_store import DamagedBank as DamagedBank
    from .models.bank_store import load_bank as load_bank
    from .models.bank_store import save_bank as save_bank
    from .models.extract import extract as extract
    from .models.images import FolderImages as FolderImages
    from .models.images import ListImages as ListImages
    from .models.images import NpzImages as NpzImages
    from .models.images import Transform as Transform
    from .models.layers import layers_of as layers_of
    from .models.layers import logits_function as logits_function
    from .models.parquet import TableImages as TableImages
    from .scoring.calibrated import CalibratedDetector as CalibratedDetector
    from .scoring.guard import Guard as Guard
    from .scoring.monitor import Monitor as Monitor


__version__ = "0.1.0"


_HOMES = {
    "Ash": "detectors.ash",
    "AutoFold": "detectors.autofold",
    "DamagedBank": "models.bank_store",
    "Detector": "detectors.base",
    "Dice": "detectors.dice",
    "Ebo": "detectors.ebo",
    "Fdbd": "detectors.fdbd",
    "FeatureBank": "core.bank",
    "Fold": "detectors.fold",
    "FoldT": "detectors.fold_t",
    "FolderImages": "models.images",
    "Gen": "detectors.gen",
    "GradNorm": "detectors.gradnorm",
    "Guard": "scoring.guard",
    "Head": "core.bank",
    "InputDetector": "detectors.base",
    "CalibratedDetector": "scoring.calibrated",
    "Klm": "detectors.klm",
    "Knn": "detectors.knn",
    "ListImages": "models.images",
    "Mds": "detectors.mds",
    "MdsEns": "detectors.mdsens",
    "Mls": "detectors.mls",
    "Monitor": "scoring.monitor",
    "Msp": "detectors.msp",
    "NNGuide": "detectors.nnguide",
    "Nci": "detectors.nci",
    "NormCap": "detectors.norm_cap",
    "NotFittedError": "core.validation",
    "NpzImages": "models.images",
    "Odin": "detectors.odin",
    "OpenMax": "detectors.openmax",
    "PartialNorm": "detectors.shaped",
    "ReAct": "detectors.react",
    "Rmds": "detectors.rmds",
    "Scale": "detectors.scale",
    "Shaped": "detectors.shaped",
    "She": "detectors.she",
    "TableImages": "models.parquet",
    "TempScale": "detectors.tempscale",
    "Transform": "models.images",
    "UnreadableImage": "core.validation",
    "UnsupportedHead": "core.validation",
    "Vim": "detectors.vim",
    "aupr": "core.metrics",
    "auroc": "core.metrics",
    "auroc_interval": "core.intervals",
    "create": "detectors",
    "extract": "models.extract",
    "fpr_at_tpr": "core.metrics",
    "layers_of": "models.layers",
    "load_bank": "models.bank_store",
    "logits_function": "models.layers",
    "methods": "detectors",
    "register": "detectors",
    "save_bank": "models.bank_store",
    "tune": "evaluate.tuning",
}


_MODULES = ("curvature",)  # with a page of names of its own


__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

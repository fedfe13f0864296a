"""Out-of-distribution detection for any PyTorch classifier, from the curvature of its energy.

These are the public names; all detectors are in ``flatfold.detectors``. A name is imported when it is first used, so
``import flatfold`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# isort: off
if TYPE_CHECKING:  # the names of _HOMES, for type checkers and the documentation
    from . import curvature as curvature, data as data, detectors as detectors
    from .core.bank import FeatureBank as FeatureBank, Head as Head
    from .core.intervals import auroc_interval as auroc_interval
    from .core.metrics import aupr as aupr, auroc as auroc, fpr_at_tpr as fpr_at_tpr
    from .data.banks import load_bank as load_bank, save_bank as save_bank
    from .data.images import FolderImages as FolderImages, Transform as Transform
    from .data.inputs import as_batches as as_batches
    from .data.loading import Loading as Loading
    from .detectors.autofold import AutoFold as AutoFold
    from .detectors.base import Detector as Detector, InputDetector as InputDetector
    from .detectors.fold import Fold as Fold
    from .detectors.fourfold import FourFold as FourFold
    from .detectors.registry import create as create, methods as methods, register as register
    from .detectors.shaped import PartialNorm as PartialNorm, Shaped as Shaped
    from .errors import DamagedBankError as DamagedBankError, DamagedFileError as DamagedFileError
    from .errors import FlatfoldError as FlatfoldError, MethodRefusedError as MethodRefusedError
    from .errors import NotFittedError as NotFittedError, UnreadableImageError as UnreadableImageError
    from .errors import UnreadableInputError as UnreadableInputError, UnreadableTextError as UnreadableTextError
    from .errors import UnsupportedHeadError as UnsupportedHeadError
    from .evaluate.tuning import tune as tune
    from .network.execution import Execution as Execution
    from .network.layers import layers_and_head as layers_and_head, layers_of as layers_of
    from .network.layers import logits_function as logits_function
    from .passes.extract import extract as extract
    from .report.benchmark import BenchmarkResults as BenchmarkResults, benchmark as benchmark
    from .report.benchmark import load_results as load_results
    from .scoring.calibrated import CalibratedDetector as CalibratedDetector, Verdict as Verdict
    from .scoring.explanation import Explanation as Explanation
    from .scoring.guard import Guard as Guard
    from .scoring.monitor import Monitor as Monitor
# isort: on

__version__ = "0.1.0"

_HOMES = {
    "core.bank": "FeatureBank Head",
    "core.intervals": "auroc_interval",
    "core.metrics": "aupr auroc fpr_at_tpr",
    "data.banks": "load_bank save_bank",
    "data.images": "FolderImages Transform",
    "data.inputs": "as_batches",
    "data.loading": "Loading",
    "detectors": "AutoFold Detector Fold FourFold InputDetector PartialNorm Shaped create methods register",
    "errors": "DamagedBankError DamagedFileError FlatfoldError MethodRefusedError NotFittedError UnreadableImageError "
    "UnreadableInputError UnreadableTextError UnsupportedHeadError",
    "evaluate.tuning": "tune",
    "network.execution": "Execution",
    "network.layers": "layers_and_head layers_of logits_function",
    "passes.extract": "extract",
    "report.benchmark": "BenchmarkResults benchmark load_results",
    "scoring.calibrated": "CalibratedDetector Verdict",
    "scoring.explanation": "Explanation",
    "scoring.guard": "Guard",
    "scoring.monitor": "Monitor",
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names.split()}
_PAGES = ("curvature", "data", "detectors")

__all__ = sorted([*_MODULES, *_PAGES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

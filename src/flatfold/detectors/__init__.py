"""Detectors, one module per method. Importing this package fills the registry."""

from .ash import Ash
from .autofold import AutoFold
from .base import Detector, InputDetector
from .dice import Dice
from .ebo import Ebo
from .fdbd import Fdbd
from .fold import Fold
from .fold_t import FoldT
from .gen import Gen
from .gradnorm import GradNorm
from .klm import Klm
from .knn import Knn
from .mds import Mds
from .mdsens import MdsEns
from .mls import Mls
from .msp import Msp
from .nci import Nci
from .nnguide import NNGuide
from .norm_cap import NormCap
from .odin import Odin
from .openmax import OpenMax
from .react import ReAct
from .registry import METHODS, create, get_method, hyperparameters, methods, parse_method, register
from .rmds import Rmds
from .scale import Scale
from .shaped import PartialNorm, Shaped, Shaping
from .she import She
from .tempscale import TempScale
from .vim import Vim

__all__ = [
    "METHODS",
    "Ash",
    "AutoFold",
    "Detector",
    "Dice",
    "Ebo",
    "Fdbd",
    "Fold",
    "FoldT",
    "Gen",
    "GradNorm",
    "InputDetector",
    "Klm",
    "Knn",
    "Mds",
    "MdsEns",
    "Mls",
    "Msp",
    "NNGuide",
    "Nci",
    "NormCap",
    "Odin",
    "OpenMax",
    "PartialNorm",
    "ReAct",
    "Rmds",
    "Scale",
    "Shaped",
    "Shaping",
    "She",
    "TempScale",
    "Vim",
    "create",
    "get_method",
    "hyperparameters",
    "methods",
    "parse_method",
    "register",
]

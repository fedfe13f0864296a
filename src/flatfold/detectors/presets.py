"""Settings collected under one name, so that published numbers can be reproduced on purpose.

``"authors"`` follows the FOLD authors' released code where it goes beyond their text: the trace is divided by the
squared norm of the mean class weight, FOLD-R drops dimensions whose *normalised* feature exceeds ReAct's threshold,
and AutoFold separates each of at most 20 classes from the rest instead of each sample from its own masked copy. Their
choice of the division on ImageNet-1K (``score_norm="feature"``) depends on the data set and is left to the caller,
and so are the percentile and the division that they select on out-of-distribution data.
"""

from typing import Any

_ONE_VS_REST = {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "authors": {
        "fold": {"alpha": 0.1, "score_norm": "weight"},
        "fold-r": {"alpha": 0.1, "percentile": 90, "masked": True},
        "fold-a": {"alpha": 0.1, "percentile": 90, "score_norm": "weight"},
        "autofold": {**_ONE_VS_REST, "score_norm": "weight"},
        "autofold-r": {**_ONE_VS_REST, "percentile": 90},
        "autofold-a": {**_ONE_VS_REST, "percentile": 90, "score_norm": "weight"},
    }
}

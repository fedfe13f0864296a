"""JSON as flatfold writes it and nothing beyond: what a text from elsewhere may cost is bounded."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

MOST_BRACKETS = 10_000  # each costs some ten times the memory of its character
_DIGITS = 20


def parsed(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: It is no JSON, or has a key twice in one object, a number that is not finite or has more digits
            than any size, or very many or very deeply nested lists.

    Example:
        >>> parsed('{"k": [1, 2.5, null]}')
        {'k': [1, 2.5, None]}
    """
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError(f"its JSON has more than {MOST_BRACKETS} lists and objects")
    try:
        return json.loads(
            text, object_pairs_hook=_distinct, parse_int=_whole, parse_float=_finite, parse_constant=_finite
        )
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def canonical(value: Any) -> str:
    """Return the one JSON text of a value, with keys in order.

    Raises:
        TypeError: It holds something that JSON has no form for.
        ValueError: It holds a number that is not finite.

    Example:
        >>> canonical({"b": (1, 2), "a": None})
        '{"a": null, "b": [1, 2]}'
    """
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("its JSON has a key twice in one object")
    return table


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"its JSON has a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError("its JSON has a number that is not finite")
    return number

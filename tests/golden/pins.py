"""Compare what the code gives today with the numbers in ``expected/``.

These numbers must not move. Where a change of behaviour is intended, and announced in CHANGELOG.md, write them anew
with ``FLATFOLD_RECORD=1 pytest tests/golden`` and read the difference before it is committed.
"""

import json
import math
import os
from pathlib import Path

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected"


def check(name, found, rtol=1e-6, atol=1e-12):
    """Fail where ``found``, of dicts, lists, texts and numbers, is not what the file of that name holds."""
    path = EXPECTED / f"{name}.json"
    if os.environ.get("FLATFOLD_RECORD"):
        EXPECTED.mkdir(exist_ok=True)
        path.write_text(json.dumps(rounded(found), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    wrong = list(differences(json.loads(path.read_text(encoding="utf-8")), found, name, rtol, atol))
    assert not wrong, "\n".join(wrong[:20])


def rounded(value):
    """Return the value with numbers of ten digits."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry) for entry in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def differences(expected, found, place, rtol, atol):
    """Yield a line for every place where two values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys()):
            if key in expected and key in found:
                yield from differences(expected[key], found[key], f"{place}/{key}", rtol, atol)
            else:
                yield f"{place}/{key} is {'missing' if key in expected else 'new'}"
    elif isinstance(expected, list) and isinstance(found, (list, tuple)) and len(expected) == len(found):
        for i, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{place}/{i}", rtol, atol)
    elif isinstance(expected, float) and isinstance(found, (int, float)):
        if not math.isclose(expected, found, rel_tol=rtol, abs_tol=atol):
            yield f"{place}: expected {expected!r}, found {found!r}"
    elif expected != found:
        yield f"{place}: expected {expected!r}, found {found!r}"

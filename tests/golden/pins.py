"""Compare what the code gives today with the numbers in ``expected/``.

These numbers must not move. Where a change of behaviour is intended, and announced in CHANGELOG.md, write them anew
with ``FLATFOLD_RECORD=1 pytest tests/golden`` and read the difference before it is committed. Numbers that agree keep
the digits they were recorded with, so a new method only adds lines.
"""

import json
import math
import os
from pathlib import Path

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected"
RECORD = (
    "If it is new, run FLATFOLD_RECORD=1 .venv/bin/python -m pytest tests/golden, "
    "and check that git diff tests/golden adds lines and changes none."
)


def check(name, found, rtol=1e-6, atol=1e-12):
    """Fail where ``found``, of dicts, lists, texts and numbers, is not what the file of that name holds."""
    path = EXPECTED / f"{name}.json"
    if os.environ.get("FLATFOLD_RECORD"):
        EXPECTED.mkdir(exist_ok=True)
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        new = updated(before, rounded(found), rtol, atol)
        path.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    wrong = list(differences(json.loads(path.read_text(encoding="utf-8")), found, name, rtol, atol))
    assert not wrong, "\n".join(wrong[:20])


def updated(before, found, rtol, atol):
    """Return what was found, with the recorded value wherever the two agree."""
    if isinstance(before, dict) and isinstance(found, dict):
        return {key: updated(before.get(key), value, rtol, atol) for key, value in found.items()}
    return found if any(differences(before, found, "", rtol, atol)) else before


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
                yield f"{place}/{key} is missing" if key in expected else f"{place}/{key} has no record. {RECORD}"
    elif isinstance(expected, list) and isinstance(found, (list, tuple)) and len(expected) == len(found):
        for i, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{place}/{i}", rtol, atol)
    elif isinstance(expected, float) and isinstance(found, (int, float)):
        if not math.isclose(expected, found, rel_tol=rtol, abs_tol=atol):
            yield f"{place}: expected {expected!r}, found {found!r}"
    elif expected != found:
        yield f"{place}: expected {expected!r}, found {found!r}"

"""Scripts of the gallery that need torchvision, timm or datasets."""

import re
from pathlib import Path

import pytest

from tests.docs.test_gallery import FOREIGN, TEXTS, run

pytestmark = pytest.mark.ecosystem


@pytest.mark.parametrize("name", FOREIGN)
def test_a_script_runs(name, tmp_path, monkeypatch, capsys):
    for library in re.findall(r"^(?:import|from) (\w+)", TEXTS[name], re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed: make test-ecosystem")
    assert run(name, tmp_path, monkeypatch, capsys)
    (saved,) = re.findall(r'save\("(.*?)"\)', TEXTS[name])
    assert Path(saved).exists()

"""The scripts of the gallery: shown as they are, and run; tests/ecosystem runs those that need other libraries."""

import re
from pathlib import Path

import pytest

from tests.docs.page import ROOT, blocks, read
from tests.docs.shell import python

FOLDER = ROOT / "examples" / "gallery"
OTHERS = re.compile(r"^(?:import|from) (?:torchvision|timm|datasets)\b", re.MULTILINE)
TEXTS = {path.name: path.read_text(encoding="utf8") for path in sorted(FOLDER.glob("*.py"))}
FOREIGN = [name for name, text in TEXTS.items() if OTHERS.search(text)]
RATES = {  # of what a script prints: least and most percent of alarms on ID and OOD inputs
    "sklearn_arrays.py": [(0, 12), (40, 100)],
    "training_loop.py": None,
    "transformers_text.py": None,
}


def run(name, folder, monkeypatch, capsys):
    """Run a script in an empty folder, and return what it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    python([str(FOLDER / name)])
    return capsys.readouterr().out


def test_the_page_shows_every_script_as_it_is():
    page = read("docs/gallery.md")
    shown = [block.text for block in blocks(page) if block.language == "python"]
    linked = re.findall(r"\(\.\./examples/gallery/(\w+\.py)\)", page)
    assert sorted(linked) == list(TEXTS)
    for name, text in zip(linked, shown, strict=True):
        assert TEXTS[name].partition('"""\n\n')[2] == text, f"copy examples/gallery/{name} to docs/gallery.md"
        assert len(TEXTS[name].splitlines()) <= 30


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in FOREIGN])
def test_a_script_runs(name, tmp_path, monkeypatch, capsys):
    if "transformers" in name:
        pytest.importorskip("transformers", reason="transformers is not installed: pip install 'flatfold[hf]'")
    if "sklearn" in TEXTS[name]:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'flatfold[demo]'")
    printed = run(name, tmp_path, monkeypatch, capsys)
    for (low, high), found in zip(RATES[name] or [], re.findall(r"(\d+)%", printed), strict=True):
        assert low <= int(found) <= high, printed
    assert len(printed.splitlines()) >= 2
    assert all(Path(saved).exists() for saved in re.findall(r'save\("(.*?)"\)', TEXTS[name]))

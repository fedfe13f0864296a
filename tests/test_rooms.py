"""Imports never point the wrong way: each room knows only the rooms above it, and only the command line prints."""

import ast
import re
import sys
from pathlib import Path

import flatfold
from flatfold.cli.options import PANEL_OF

SOURCE = Path(flatfold.__file__).parent
ROOMS = (
    "io", "display", "core", "detectors", "data", "network", "passes", "curvature", "scoring", "evaluate", "report",
    "paper",
)  # fmt: skip
MAY_IMPORT = {room: {*ROOMS[:number]} for number, room in enumerate((*ROOMS, "serve", "cli"))}
MAY_IMPORT["core"] = {"io"}
MAY_IMPORT["detectors"] -= {"display"}
for room in ("data", "network", "passes", "curvature"):
    MAY_IMPORT[room] -= {"detectors"}
MAY_IMPORT["report"] -= {"data", "network", "passes", "scoring"}
MAY_IMPORT["serve"] -= {"passes", "curvature", "evaluate", "report", "paper"}
MAY_IMPORT["cli"] |= {"serve"}
EVERYWHERE = {"__version__", "errors"}
OUTSIDE_OF_CORE = {"core": {"torch", "numpy", "scipy"}, "detectors": {"torch", "numpy", "scipy"}}


def imports(path, tree):
    """Yield (room or package, is it ours) for each import of a file."""
    here = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.module.partition(".")[0], False
            elif node.level <= len(here):  # one dot is the own folder, as many as there are folders the own room
                yield here[0], True
            elif node.module:
                yield node.module.partition(".")[0], True
            else:
                yield from ((alias.name, True) for alias in node.names)


def files():
    for room in MAY_IMPORT:
        for path in sorted((SOURCE / room).rglob("*.py")):
            yield room, path, ast.parse(path.read_text(encoding="utf8"))


def test_a_file_imports_only_from_rooms_above_its_own():
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__"} == set(MAY_IMPORT)
    for room, path, tree in files():
        found = set(imports(path, tree))
        ours, outside = ({name for name, own in found if own is side} for side in (True, False))
        assert ours <= MAY_IMPORT[room] | {room} | EVERYWHERE, path
        assert "flatfold" not in outside, f"{path}: inside the package, imports are relative"
        if room in OUTSIDE_OF_CORE:
            assert outside - sys.stdlib_module_names <= OUTSIDE_OF_CORE[room], path


def test_only_the_command_line_prints():
    for room, path, tree in files():
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
        assert room == "cli" or not prints, path


def test_only_the_command_line_names_its_options():
    options = "|".join(name.replace("_", "-") for name in (*PANEL_OF, "restart", "with"))
    for room, path, tree in files():
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documents]
        named = [text for text in texts if isinstance(text, str) and re.search(rf"--({options})(?![\w-])", text)]
        assert room == "cli" or [text for text in named if "ray start" not in text] == [], path

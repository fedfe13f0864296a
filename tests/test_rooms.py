"""Imports never point the wrong way: each room knows only the rooms above it."""

import ast
from pathlib import Path

import pytest

import flatfold

SOURCE = Path(flatfold.__file__).parent
MAY_IMPORT = {
    "core": set(),
    "detectors": {"core"},
    "models": {"core"},
    "curvature": {"core", "models"},
    "scoring": {"core", "detectors", "models"},
    "evaluate": {"core", "detectors", "models", "curvature", "scoring"},
    "report": {"core", "curvature", "evaluate"},
    "serve": {"core", "detectors", "models", "scoring"},
    "cli": {"core", "detectors", "models", "curvature", "scoring", "evaluate", "report", "serve"},
}
EVERYWHERE = {"progress", "files", "__version__"}  # two small helpers that belong to no room, and the version
OUTSIDE_OF_CORE = {"core": {"torch", "numpy"}, "detectors": {"torch", "numpy"}}


def imports(path):
    """Yield (room or package, is it ours) for each import of a file."""
    here = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
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


FILES = [path for room in MAY_IMPORT for path in sorted((SOURCE / room).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_imports_only_from_rooms_above_its_own(path):
    room = path.relative_to(SOURCE).parts[0]
    allowed = MAY_IMPORT[room] | {room} | EVERYWHERE
    assert {name for name, ours in imports(path) if ours} <= allowed
    outside = {name for name, ours in imports(path) if not ours}
    assert "flatfold" not in outside, "inside the package, imports are relative"
    if room in OUTSIDE_OF_CORE:
        import sys

        assert outside - sys.stdlib_module_names <= OUTSIDE_OF_CORE[room]


def test_every_room_is_on_the_list():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_the_command_line_prints(path):
    if path.relative_to(SOURCE).parts[0] == "cli":
        return
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not any(isinstance(call, ast.Name) and call.id == "print" for call in calls)

"""``--with``: methods of one's own, from Python files that register them."""

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated

import typer

With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FILE",
        help="Python file with methods of your own, each below @flatfold.register(...); repeat for more files.",
        show_default=False,
    ),
]


def load_own(paths: Iterable[Path] | None) -> tuple[str, ...]:
    """Run Python files, each once, and return the names of the methods that they registered.

    From then on these are methods like all others: for ``--methods``, in tables, figures and result files.

    Args:
        paths: Files that call :func:`flatfold.register`; None for no files.
    """
    from ..detectors import METHODS

    before = set(METHODS)
    for path in dict.fromkeys(path.resolve() for path in paths or ()):
        known = len(METHODS)
        _run(path)
        if len(METHODS) == known:
            raise ValueError(
                f"{path} was run, but registered no method. "
                'Put @flatfold.register("name") above a class that derives from flatfold.Detector.'
            )
    return tuple(name for name in METHODS if name not in before)


def _run(path: Path) -> None:
    """Run a file as a module with a name of its own; it may import modules that lie beside it."""
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"--with needs a Python file, *.py, but {path} is none. Is the path right?")
    name = f"flatfold_own_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look for their module there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does when it is run
        raise ValueError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))

"""Hooks of mkdocs: formulas as MathML, pages and examples from the root, links to them, tables and look of the package.

Everything is made while the site is built, so that the site needs no network later and cannot fall behind the code.
Pages are written to be read in the repository: their relative links name files of the repository, and are rewritten
here for the site.
"""

import html
import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
FROM_ROOT = {"changelog.md": "CHANGELOG.md", "architecture.md": "ARCHITECTURE.md", "contributing.md": "CONTRIBUTING.md"}
PAGES = {source: page for page, source in FROM_ROOT.items()} | {"README.md": "index.md"}
LINK = re.compile(r"(?<=\]\()(?!\w+:)[^)#\s]+")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[]\s*(.*?)\s*\\[)\]]</\1>', re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
UNKNOWN = {
    r"\arg": r"\operatorname{arg}",
    r"\Big\|": r"\|",
    r"\big\|": r"\|",
}  # what the converter would leave as it is, and what it understands
WIDTH = 90  # of a command's help: fits beside the navigation
MODES = '[data-md-color-scheme="default"]', '[data-md-color-scheme="slate"]'  # selectors of light and dark pages
HIDDEN = 'filters: ["!^_", "!^(forward|learn|score|shape|pairs|score_range|innermost|is_fitted|fit_without)$"]'


def on_files(files: Any, config: Any) -> Any:
    """Add the root's pages, the examples that pages link to, and the look that the site shares with other pages."""
    from mkdocs.structure.files import File

    from flatfold.display import look

    files.append(File.generated(config, "look.css", content=look.variables(*MODES)))
    files.append(File.generated(config, "mark.svg", content=look.mark_file()))
    for page, source in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf8")))
    for path in sorted([*(ROOT / "examples").glob("*.*"), *(ROOT / "examples").glob("gallery/*.py")]):
        place = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, content=path.read_text(encoding="utf8")))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        cells = notebook(path.read_text(encoding="utf8"))
        files.append(File.generated(config, f"tutorials/{path.stem}.ipynb", content=cells))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links for the site, and replace comments such as ``<!-- methods -->`` by what the package declares."""
    place = page.file.src_uri
    markdown = link_pages(markdown, place)
    link = f"[Open as a notebook]({Path(place).stem}.ipynb), or follow this page."
    markdown = markdown.replace("<!-- notebook -->", link)
    for comment, made in (("commands", commands), ("names", names), ("bibtex", bibtex)):
        marker = f"<!-- {comment} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return re.sub(r"<!-- classes (\w+) -->", lambda found: classes(found[1], markdown), markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Write every formula of a page as MathML, which browsers draw by themselves."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2]), found[1] == "div"), content)


def mathml(formula: str, display: bool) -> str:
    """Return a formula in LaTeX as MathML, in a line of its own if ``display``."""
    from latex2mathml.converter import convert

    for unknown, same in UNKNOWN.items():
        formula = formula.replace(unknown, same)
    made: str = convert(formula, display="block" if display else "inline")
    return f'<div class="formula">{made}</div>' if display else made


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: its code in cells, with the output that the page shows."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str) -> None:
        more = {"execution_count": None, "outputs": []} if kind == "code" else {}
        source = text.strip().splitlines(keepends=True)
        if source:
            cells.append({"id": f"cell-{len(cells)}", "cell_type": kind, "metadata": {}, "source": source, **more})

    page = re.sub(r"^<!--.*?-->\n", "", page, flags=re.MULTILINE)
    for number, part in enumerate(BLOCK.split(page)):
        kind = ("text", "language", "code")[number % 3]
        if kind == "language":
            language = part
        elif kind == "text":
            add("markdown", part)
        elif language in ("text", "json"):
            if cells[-1]["cell_type"] == "code":
                lines = part.splitlines(keepends=True)
                cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": lines}]
            else:
                add("markdown", f"```{language}\n{part}```")
        else:
            add("code", part if language == "python" else shell_cell(part))
    if any("service = " in line for cell in cells for line in cell["source"]):
        add("code", "service.terminate()")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": cells}, indent=1)


def shell_cell(lines: str) -> str:
    """Return lines for a shell as a cell; a service goes on in the background, and requests wait for it."""
    if lines.startswith("flatfold serve"):
        return f"import subprocess\n\nservice = subprocess.Popen({shlex.split(lines)})"
    return re.sub(r"^(?=\w)", "!", lines, flags=re.MULTILINE).replace(
        "!curl", "!curl --retry 30 --retry-connrefused -s"
    )


def link_pages(markdown: str, page: str) -> str:
    """Return a page with its links to files of the repository rewritten to their places on the site.

    Example:
        >>> link_pages("[a](../../CHANGELOG.md#0) [b](../../examples/guard.py) [c](../maths.md)", "howto/scale.md")
        '[a](../changelog.md#0) [b](../examples/guard.py) [c](../maths.md)'
        >>> link_pages("[a](docs/speed.md) [b](CHANGELOG.md) [c](https://x.org/README.md)", "architecture.md")
        '[a](speed.md) [b](changelog.md) [c](https://x.org/README.md)'
    """
    folder = "" if page in FROM_ROOT else join("docs", dirname(page))

    def on_site(link: re.Match[str]) -> str:
        source = normpath(join(folder, link[0]))
        place = PAGES.get(source, source.removeprefix("docs/"))
        return relpath(place, dirname(page) or ".") if (ROOT / source).is_file() else link[0]

    return LINK.sub(on_site, markdown)


def commands() -> str:
    """Return a section for every command, with its ``--help``."""
    return "\n\n".join(f"## {name}\n\n```text\n{text}\n```" for name, text in helps())


def helps() -> Iterator[tuple[str, str]]:
    """Yield every command of the command line, groups before their members, with its help."""
    from typer.main import get_command

    from flatfold.cli import app

    waiting: list[tuple[str, Any]] = [("flatfold", get_command(app))]
    while waiting:
        name, command = waiting.pop(0)
        context = command.make_context(name, [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH)
        yield name, command.get_help(context).strip()
        waiting[:0] = [(f"{name} {key}", member) for key, member in getattr(command, "commands", {}).items()]


def methods() -> str:
    """Return the table of all methods, with links to the papers; `docs/reference/detectors.md` has a copy of it."""
    from flatfold.detectors import cited_works, full_name, get_method, hyperparameters
    from flatfold.detectors import methods as registered

    rows = ["| name | what it scores | from | learns from | hyper-parameters |", "|---|---|---|---|---|"]
    for name in registered():
        method = get_method(name)
        hyper = ", ".join(f"`{key}`" for key in hyperparameters(name))
        works = "; ".join(f"[{work.short}]({work.link})" if work.link else work.short for work in cited_works(name))
        what = f"**{full_name(name)}.** {method.summary}"
        rows.append(f"| `{name}` | {what} | {works} | {method.fits_on} | {hyper} |")
    return "\n".join(rows)


def classes(kind: str, page: str) -> str:
    """Return the entries of the classes of all methods that learn from nothing, learn from data, or see inputs.

    Without those that the page has already; a shaping such as ``ReAct`` is the class of its method.
    """
    from flatfold import detectors

    entries = []
    for name in detectors.methods():
        method = detectors.get_method(name)
        learns = "nothing" if method.fits_on == "nothing" else "data"
        module = import_module(method.factory.__module__)
        own = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
        for each in own:
            place = "flatfold.detectors" if hasattr(detectors, each.__name__) else module.__name__
            written = re.search(rf"^::: flatfold\.(detectors\.)?{each.__name__}$", page, re.MULTILINE)
            wanted = issubclass(each, detectors.Detector | detectors.InputDetector | detectors.Shaping)
            if wanted and not written and kind == (learns if method.sees == "features" else "inputs"):
                entries.append(f"::: {place}.{each.__name__}\n    options:\n      heading_level: 3\n      {HIDDEN}\n")
    return "\n".join(dict.fromkeys(entries))


def bibtex() -> str:
    """Return the BibTeX entries of all works that methods come from."""
    from flatfold.detectors import cited_works
    from flatfold.detectors import methods as registered

    works = {work.key: work.bibtex for name in registered() for work in cited_works(name)}
    return "```bibtex\n" + "\n\n".join(works[key] for key in sorted(works)) + "\n```"


def names() -> str:
    """Return a table of every public name of ``flatfold``, with a link to where it is described."""
    package = import_module("flatfold")
    rows = ["| name | |", "|---|---|"]
    for name in (name for name in package.__all__ if not name.startswith("__")):
        value = getattr(package, name)
        target = f"({name}.md)" if isinstance(value, ModuleType) else f"[flatfold.{name}]"
        summary = (value.__doc__ or "").strip().partition("\n")[0]
        rows.append(f"| [`{name}`]{target} | {plain(summary)} |")
    return "\n".join(rows)


def plain(text: str) -> str:
    r"""Return a line of a docstring as Markdown for a cell: formulas between dollars, other roles as code.

    Example:
        >>> print(plain("A :class:`~flatfold.Guard` for ``a | b`` at :math:`x`."))
        A `Guard` for `a \| b` at $x$.
    """
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return text.replace("|", "\\|")

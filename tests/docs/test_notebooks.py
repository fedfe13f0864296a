"""The tutorials as notebooks: every cell runs, in an empty folder."""

import json
import os
import sys
from pathlib import Path
from socket import create_server

import pytest

from tests.docs.page import module, read

nbformat = pytest.importorskip("nbformat", reason="notebooks are not run: pip install 'flatfold[dev]'")
nbclient = pytest.importorskip("nbclient", reason="notebooks are not run: pip install 'flatfold[dev]'")
pytestmark = [pytest.mark.docs, pytest.mark.timeout(600)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("page", ["engineer", "researcher", "text"])
def test_every_cell_of_a_tutorial_runs(page, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    notebook = nbformat.reads(module("hooks").notebook(read(f"docs/tutorials/{page}.md")), as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and not cell.source.startswith("!pip ")]
    for cell in cells:
        cell.source = cell.source.replace("8000", str(port)).replace("'serve',", f"'serve', '--port', '{port}',")
        if cell.source.startswith("!flatfold bench"):
            cell.source += " --limit 60 --bootstrap 50 --no-report"
        if cell.source.startswith("!"):  # a cell of the shell does not fail by itself
            cell.source += "\nassert _exit_code == 0"
    notebook.cells = cells
    shown = {cell.id for cell in cells if cell.outputs}
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}, timeout=300).execute()
    printed = {cell.id: "".join(output.get("text", "") for output in cell.outputs) for cell in cells}
    assert all(printed[name] for name in shown)
    if page == "engineer":
        (answer,) = (text for name, text in printed.items() if '"rows"' in text)
        assert json.loads(answer)["rows"][0]["is_ood"] in (True, False)

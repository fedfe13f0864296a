"""The command line as a whole: exit codes, start-up time and terminals without Unicode."""

import io
import subprocess
import sys
from unittest.mock import Mock

import pytest

import flatfold as ff
from flatfold import cli
from tests.command import flatfold


def test_errors_end_in_a_sentence_and_an_exit_code(monkeypatch, capsys):
    for error, code, keyword in [
        (ValueError("no such thing. Try another."), 1, "flatfold: no such thing. Try another."),
        (PermissionError(13, "Permission denied", "out"), 1, "Permission denied: 'out'"),
        (ModuleNotFoundError("No module named 'mlxtend'"), 1, "[demo]"),
    ]:
        monkeypatch.setattr(cli, "app", Mock(side_effect=error))
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == code, error
        assert keyword in capsys.readouterr().err


def test_version_methods_and_unknown_commands(tmp_path):
    assert flatfold("--version").stdout.strip() == f"flatfold {ff.__version__}"
    listed = flatfold("methods").stdout
    missing = [name for name in ff.methods() if f"\n{name} " not in listed]
    assert not missing
    assert "percentile=90" in listed
    assert flatfold("methods", "--cite", "knn:k=10").stdout.startswith("@inproceedings{sun2022knn,")
    done = flatfold("fly", cwd=tmp_path)
    assert (done.returncode, "fly" in done.stderr) == (2, True)


def test_help_does_not_import_torch():
    code = "import sys; sys.argv.append('--help'); from flatfold.cli import main\n"
    code += "try: main()\nexcept SystemExit: assert not {'torch', 'rich.console'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_terminal_without_unicode_gets_its_table(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["flatfold", "paper", "--table", "hessian_parameter"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    out.flush()
    assert left.value.code == 0
    assert b"1147.9 ? 11.7" in out.buffer.getvalue()

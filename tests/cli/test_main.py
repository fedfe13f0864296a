"""The command line as a whole: exit codes, help, completion, how much is printed, and terminals without Unicode."""

import io
import json
import subprocess
import sys
from unittest.mock import Mock

import pytest
from typer.main import get_command

import flatfold as ff
from flatfold import cli
from flatfold.cli.options import PANEL_OF
from flatfold.evaluate.suites.schema import built_in_names
from flatfold.io import progress
from tests.command import flatfold
from tests.golden.test_commands import EVERY


def test_errors_end_in_a_sentence_and_an_exit_code(monkeypatch, capsys):
    for error, code, keyword in [
        (ValueError("no such thing. Try another."), 1, "flatfold: no such thing. Try another."),
        (PermissionError(13, "Permission denied", "out"), 1, "Permission denied: 'out'"),
        (ModuleNotFoundError("No module named 'mlxtend'"), 1, "[demo]"),
        (ValueError("Give data=, or any_counts=True."), 1, "On the command line: --data, --any-counts."),
        (MemoryError(), 1, "flatfold: out of memory. Close"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), 1, "--batch-size"),
        (ValueError("fold:alpha=2 and resize=3, or alpha=0.5."), 1, "or alpha=0.5.\n"),  # values, not arguments
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


def test_every_summary_fits_on_its_line_and_every_option_has_a_panel():
    overview = flatfold("--help", columns=80).stdout
    assert "..." not in overview.partition("Commands:")[2]
    for name, command in EVERY.items():
        options = [each for each in command.params if each.param_type_name == "option"]
        assert not [each.name for each in options if each.rich_help_panel is None], name
        shown = flatfold(*name.split(), "--help", columns=80).stdout
        titles = [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[:1].isupper()]
        wanted = [panel for panel in dict.fromkeys(PANEL_OF.values()) if panel in {o.rich_help_panel for o in options}]
        assert [title for title in titles if title != "Arguments"] == wanted, name
        assert shown.rstrip().endswith("Show this message and exit."), name
        assert max(map(len, shown.splitlines())) <= 80, name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("flatfold sc", {"score", "score-features"}),
        ("flatfold bench cif", {"cifar10", "cifar100"}),
        ("flatfold doctor ", {"digits", "texts", "scenes", *built_in_names()}),
        ("flatfold fit val --run", {"--runtime"}),
        ("flatfold fit val --runtime to", {"torch", "torch-compile"}),
    ],
)
def test_the_shell_completes_commands_options_and_values(monkeypatch, words, expected):
    for name, value in {"_FLATFOLD_COMPLETE": "complete_bash", "COMP_WORDS": words}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert set(flatfold().stdout.split()) == expected
    assert {"--install-completion", "--show-completion"} <= {o for p in get_command(cli.app).params for o in p.opts}


def test_suites_are_completed_without_torch():
    """A shell waits for the answer."""
    code = "import sys; from flatfold.cli.options import complete_suite as complete\n"
    code += "assert complete('dig') == ['digits']; assert complete('mine') == []; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
def test_options_of_every_command(tmp_path, before):
    """They may stand before the command or after it, and hold for this command only."""

    def run(option, *words):
        return flatfold(*([option, *words] if before else [*words, option]), cwd=tmp_path)

    wrong = ("bench", "cifar11")
    debugged = run("--debug", *wrong)
    assert (debugged.returncode, debugged.stdout) == (1, "")
    assert debugged.stderr.startswith("Traceback")
    assert "load_suites" in debugged.stderr
    assert flatfold(*wrong, cwd=tmp_path).stderr.startswith("flatfold: no suite")
    usage = run("--debug", "score", "x", "--guard", "g", "--model", "a:b", "--out", "s.csv", "--shard", "9/3")
    assert (usage.returncode, "Traceback" in usage.stderr, "--shard" in usage.stderr) == (2, True, True)
    written = run("--quiet", "suite", "init", "mine.toml")
    assert (written.returncode, written.stdout, written.stderr, progress.hidden) == (0, "", "", True)
    assert run("-q", "paper", "--table", "cifar10").stdout == flatfold("paper", "--table", "cifar10").stdout
    assert not progress.hidden
    assert json.loads(run("--json", "suite", "init", "more.toml").stdout)["suite"] == "more.toml"
    refused = run("-q", *wrong)
    assert (refused.returncode, "cifar11" in refused.stderr) == (1, True)
    assert run("-q", "methods", "-v").returncode == 2


def test_listings_are_json_on_request(digits, tmp_path):
    """Standard output is one JSON document and nothing else."""
    for words, names in [
        (("methods",), {"methods"}),
        (("paper",), {"tables", "contradictions", "notes"}),
        (("paper", "--table", "cifar10"), {"table", "number", "about", "numbers", "contradictions"}),
        (("doctor", "digits"), {"suite", "ok", "findings"}),
        (("compare", digits, "--methods", "msp,fold"), {"changes", "remarks", "csv"}),
    ]:
        done = flatfold(*words, "--json", cwd=tmp_path)
        assert (done.returncode, set(json.loads(done.stdout)), done.stderr) == (0, names, ""), words
    assert [each["name"] for each in json.loads(flatfold("methods", "--json").stdout)["methods"]] == list(ff.methods())


def test_a_terminal_without_unicode_gets_its_table(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["flatfold", "paper", "--table", "hessian_parameter"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    out.flush()
    assert left.value.code == 0
    assert b"1147.9 ? 11.7" in out.buffer.getvalue()


def test_an_error_is_the_json_document_of_every_command(tmp_path):
    """It says on stdout what it says on stderr, and names the exit code."""
    wrong = {
        "score": ("x", "--guard", "g", "--model", "a:b", "--out", "s.csv", "--shard", "9/3"),
        "bench": ("cifar11",), "doctor": ("cifar11",), "compare": ("a", "b"), "report": ("nowhere",),
        "join": ("a.csv", "--out", "b.csv"), "paper": ("nowhere",), "curvature": ("cifar11",),
        "reproduce": ("cifar11",), "fit": ("x", "--model", "a:b", "--out", "g"), "serve": ("g", "--model", "a:b"),
        "export": ("g", "--model", "a:b", "--images", "x"), "methods": ("--cite", "nothing"),
        "score-features": ("f.npy", "--guard", "g", "--out", "s.csv"), "suite init": ("a.toml", "--id", "b"),
    }  # fmt: skip
    assert wrong.keys() == EVERY.keys()
    for name, words in wrong.items():
        for arguments, code in ((words, None), (("--no-such-option",), 2)):
            done = flatfold(*name.split(), *arguments, "--json", cwd=tmp_path)
            document = json.loads(done.stdout)
            assert set(document) == {"error", "exit_code"}, name
            assert document["exit_code"] == done.returncode == (code or done.returncode) > 0, name
            assert " ".join(document["error"].split()) in " ".join(done.stderr.split()), name
        assert flatfold(*name.split(), *words, cwd=tmp_path).stdout == "", name


def test_an_interruption_and_a_mistake_of_ours_are_json_too(monkeypatch):
    for error, code, text in (
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("ours"), None, "RuntimeError: ours"),
    ):
        monkeypatch.setattr("flatfold.detectors.methods", Mock(side_effect=error))
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "argv", ["flatfold", "methods", "--json"])
        with pytest.raises(SystemExit if code else RuntimeError):
            cli.main()
        document = json.loads(out.getvalue())
        assert text in document["error"]
        assert document["exit_code"] == (code or 1)

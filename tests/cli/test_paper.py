"""`flatfold paper`: runs beside the paper, and the paper's own tables."""

import csv
import re

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from flatfold.cli.paper import paper
from flatfold.cli.table import LEGEND
from flatfold.evaluate.paper import NOTES, TABLES, Contradiction, contradictions
from flatfold.evaluate.results import Results
from flatfold.evaluate.rows import Average, Certainty, MethodRun, Row

SETS = {"cifar100": "near", "tin": "near", "mnist": "far", "svhn": "far", "texture": "far", "places365": "far"}
MSP = {"cifar100": 87.19, "tin": 88.87, "mnist": 92.63, "svhn": 91.46, "texture": 89.89, "places365": 88.92}
DEVIATION = "Only 100 [test] images."


@pytest.fixture
def flatfold():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(paper)

    def call(*arguments):
        return CliRunner().invoke(app, list(map(str, arguments)))

    return call


def save_run(folder, methods=("msp", "knn"), family="net", certain=True, **suite):
    """A run whose AUROCs on MNIST are 2 points above the paper's MSP, elsewhere equal to it."""
    rows = []
    for method in methods:
        for name, group in SETS.items():
            value = (MSP[name] + 2 * (name == "mnist")) / 100
            ends = {"auroc": (value - 0.01, value + 0.01), "fpr95_ood_positive": (0.0, 1.0)}
            certainty = Certainty(ends, 0.0, 0.0, 0.0, 1.0, True) if certain else None
            rows.append(Row(method, "nothing", name, group, value, *[0.4] * 4, 10, 10, certainty))
    averages = [Average(method, "nothing", "all", "us", 0.9, *[0.4] * 4, rows[0].certainty) for method in methods]
    told = {"protocol": "openood-1.5/cifar10", "architecture": "openood/resnet18_32x32", "deviations": []}
    Results(
        suite={"name": "cifar10", "family": family, "ood": [{"name": name} for name in SETS], **told, **suite},
        methods=[MethodRun(method, method, {}, "nothing", "nothing", 0.1, 1.0) for method in methods],
        refused={},
        rows=rows,
        averages=averages,
        alpha_curves=[],
        provenance={},
        scores={},
    ).save(folder)


def save_three(folder, **kind):
    for seed in range(3):
        save_run(folder / f"s{seed}", **kind)


def line_of(text, method):
    return next(line for line in text.splitlines() if line.startswith(f"│ {method} "))


def test_a_run_stands_beside_the_paper(flatfold, tmp_path):
    save_three(tmp_path)
    result = flatfold(tmp_path)
    assert result.exit_code == 0, result.output
    assert "net beside the table cifar10 of the paper: AUROC" in result.output
    assert "net beside the table cifar10 of the paper: FPR95" in result.output
    cells = [cell.strip() for cell in line_of(result.output, "msp").strip("│").split("│")]
    assert cells == [
        "msp",
        "87.19 +0.00",
        "88.87 +0.00",
        "94.63 +2.00*",
        "91.46 +0.00",
        "89.89 +0.00",
        "88.92 +0.00",
        "90.00 +0.17",
    ]
    assert "* the reported number lies outside the 95 % interval" in result.output
    assert "knn: untuned here, tuned on OOD data in the paper" in result.output
    assert "†" not in result.output


def test_how_many_agree_is_counted(flatfold, tmp_path):
    save_three(tmp_path, methods=("msp",))
    # 7 FPR95 whose intervals hold everything; 7 AUROCs of which MNIST's is 2 points off
    assert "13 of 14 reported numbers lie inside the 95 % interval" in flatfold(tmp_path).output


def test_what_has_no_interval_is_not_counted(flatfold, tmp_path):
    save_three(tmp_path, methods=("msp",), certain=False)
    output = flatfold(tmp_path).output
    assert "0 of 0 reported numbers" in output
    assert "14 have no interval." in output
    assert "94.63 +2.00 │" in re.sub(r" +", " ", output)  # no star without an interval


def test_each_family_has_tables_of_its_own(flatfold, tmp_path):
    save_run(tmp_path / "a", family="one[1]")
    save_run(tmp_path / "b", family="two")
    output = flatfold(tmp_path).output
    assert output.index("one[1] beside the table") < output.index("two beside the table")
    assert output.count("all: networks: 1 here, 3 in the paper") == 2
    assert output.count("reported numbers lie inside") == 2


def test_what_is_not_comparable_is_refused_or_marked(flatfold, tmp_path):
    save_three(tmp_path, deviations=[DEVIATION])
    with pytest.raises(ValueError, match=r"Only 100 \[test\] images\. --anyway"):
        raise flatfold(tmp_path).exception
    result = flatfold(tmp_path, "--anyway")
    assert result.exit_code == 0
    assert result.output.count("all: not comparable: Only 100 [test] images") == 1
    for metric in ("AUROC", "FPR95"):
        assert f"NOT COMPARABLE: net beside the table cifar10 of the paper: {metric}" in result.output


def test_only_what_is_not_comparable_has_it_in_its_title(flatfold, tmp_path):
    save_run(tmp_path / "a", family="one")
    save_run(tmp_path / "b", family="two", deviations=[DEVIATION])
    output = flatfold(tmp_path, "--anyway").output
    assert output.count("NOT COMPARABLE") == output.count("NOT COMPARABLE: two beside") == 2
    assert "one beside the table" in output


def test_a_table_can_be_named(flatfold, tmp_path):
    save_three(tmp_path, protocol="")
    with pytest.raises(ValueError, match=r"--anyway with --table and one of cifar10, .* shows them side by side"):
        raise flatfold(tmp_path).exception
    with pytest.raises(ValueError, match="Name one with --table"):
        raise flatfold(tmp_path, "--anyway").exception
    assert "beside the table cifar100 of the paper" in flatfold(tmp_path, "--anyway", "--table", "cifar100").output


def test_the_csv_has_every_line(flatfold, tmp_path):
    save_three(tmp_path / "runs")
    path = tmp_path / "beside.csv"
    result = flatfold(tmp_path / "runs", "--csv", path)
    assert f"28 lines -> {path}" in result.output.replace("\n", "")
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 28
    assert lines[0] | {"measured": "", "difference": "", "low": "", "high": ""} == {
        "method": "msp",
        "dataset": "cifar100",
        "metric": "auroc",
        "reported": "87.19",
        "measured": "",
        "difference": "",
        "low": "",
        "high": "",
        "inside": "True",
        "remark": "",
        "table": "cifar10",
        "family": "net",
    }
    assert [float(lines[0][name]) for name in ("measured", "low", "high")] == pytest.approx([87.19, 86.19, 88.19])


def test_a_narrow_terminal_gets_the_averages(flatfold, tmp_path, monkeypatch):
    save_three(tmp_path)
    monkeypatch.setattr("rich.console.Console", lambda: Console(force_terminal=True, width=80, color_system=None))
    output = flatfold(tmp_path).output
    assert "90.00 +0.17" in output
    assert "texture" not in output
    assert "too narrow for every data set; --csv writes them all" in output


def test_a_contradictory_number_is_marked_and_explained(flatfold, tmp_path, monkeypatch):
    save_three(tmp_path)
    wrong = Contradiction("cifar10", "MSP", "Average", "auroc", 89.83, 89.01)
    monkeypatch.setattr("flatfold.evaluate.paper.contradictions", lambda: [wrong])
    output = flatfold(tmp_path).output
    assert "90.00 +0.17†" in line_of(output, "msp")
    assert "† an average that is not the mean of its parts." in output
    assert "msp: † 89.83 is printed, the mean of its parts is 89.01" in output


def test_without_a_folder_the_tables_and_the_contradictions_are_listed(flatfold):
    output = " ".join(flatfold().output.split())
    assert all(f"{name} {layout.about}" in output for name, layout in TABLES.items())
    assert all(f"- {text}" in output for text in (*map(str, contradictions()), *NOTES))
    assert output.endswith(" flatfold paper --table cifar10 shows one.")


def test_the_help_says_what_is_shown(flatfold):
    text = " ".join(flatfold("--help").output.replace("│", " ").split())
    assert "beside the paper's AUROC and FPR95, and count which of them lie inside the intervals of the run" in text
    assert "Without a folder, list the tables of the paper and where it contradicts itself" in text
    assert "with --table alone, show one table" in text


@pytest.mark.parametrize(
    ("name", "caption"),
    [
        ("cifar10", LEGEND),
        ("partial_normalisation", LEGEND),
        ("logit_vs_feature_hessian", "AUROC in percent."),
        ("hessian_parameter", "largest eigenvalue / trace of the Hessian."),
    ],
)
def test_a_table_says_in_whole_words_what_its_figures_are(name, caption, flatfold):
    output = flatfold("--table", name).output
    assert caption in " ".join(output.split())
    assert not {"auroc", "fpr95", "lambda_max"} & set(output.split("└")[1].partition("†")[0].split())


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_printed_whole(name, flatfold):
    result = flatfold("--table", name)
    assert result.exit_code == 0
    assert f"{name}: {TABLES[name].about}" in result.output
    assert "…" not in result.output
    explained = [line for line in result.output.splitlines() if line.startswith("†")]
    assert len(explained) == sum(c.table == name for c in contradictions())


def test_a_table_shows_its_numbers_as_the_paper_does(flatfold):
    knn = line_of(flatfold("--table", "cifar10").output, "KNN")
    assert "│ 91.56 / 30.37 │" in knn
    normalised = flatfold("--table", "partial_normalisation").output
    assert line_of(normalised, "ImageNet-200, alpha = 1").endswith("79.02† / 81.19 │")
    assert line_of(normalised, "CIFAR-10, alpha = 1").endswith("91.34 / 36.71 │")
    hessian = flatfold("--table", "hessian_parameter").output
    assert "1147.9 ± 11.7† / 55558.4 ± 1435.6†" in line_of(hessian, "ImageNet-200")
    assert "702.4 / 26834.2" in line_of(hessian, "ImageNet-1K")


@pytest.mark.parametrize("option", [("--anyway",), ("--csv", "x.csv"), ("--table", "cifar10", "--anyway")])
def test_options_of_a_comparison_need_a_run(option, flatfold):
    result = flatfold(*option)
    assert result.exit_code == 2
    assert "--anyway and --csv need the folder of a run" in " ".join(result.output.replace("│", " ").split())


def test_a_folder_without_a_run_is_refused(flatfold, tmp_path):
    with pytest.raises(ValueError, match=r"no results.json in"):
        raise flatfold(tmp_path).exception

"""``flatfold paper``: runs beside the tables of the paper, and these tables themselves."""

import json
from itertools import product

import pytest

from flatfold.evaluate.results import Average, Certainty, MethodRun, Results, Row
from flatfold.paper.tables import TABLES, Contradiction, contradictions, read_table
from flatfold.paper.verdicts import read_claims
from tests.cli.images import read_rows
from tests.cli.running import assert_mistakes, succeed, words
from tests.command import flatfold
from tests.evaluate.runs import make_suite
from tests.toy_ablations import make_results

SETS = {"cifar100": "near", "tin": "near", "mnist": "far", "svhn": "far", "texture": "far", "places365": "far"}
MSP = {"cifar100": 87.19, "tin": 88.87, "mnist": 92.63, "svhn": 91.46, "texture": 89.89, "places365": 88.92}


def save_run(folder, methods=("msp", "knn"), family="net", certain=True, **suite):
    """Write a run whose AUROCs on MNIST are 2 points above the paper's MSP, elsewhere equal to it."""
    rows = []
    for method in methods:
        for name, group in SETS.items():
            value = (MSP[name] + 2 * (name == "mnist")) / 100
            ends = {"auroc": (value - 0.01, value + 0.01), "fpr95_ood_positive": (0.0, 1.0)}
            certainty = Certainty(ends, 0.0, 0.0, 0.0, 1.0, True) if certain else None
            rows.append(Row(method, "nothing", name, group, value, *[0.4] * 4, 10, 10, certainty))
    averages = [
        Average(method, "nothing", column, "us", 0.9, *[0.4] * 4, rows[0].certainty)
        for method, column in product(methods, ("near", "far", "all"))
    ]
    protocol = {"protocol": "openood-1.5/cifar10", "architecture": "openood/resnet18_32x32", "deviations": []}
    suite = make_suite(SETS, **({"name": "cifar10", "family": family} | protocol | suite))
    runs = [MethodRun(method, method, {}, "nothing", "nothing", 0.1, 1.0) for method in methods]
    Results(suite, runs, {}, rows, averages, [], {}, {}).save(folder)


def save_three(folder, **kind):
    for seed in range(3):
        save_run(folder / f"s{seed}", **kind)


def cells(text, method):
    line = next(line for line in text.splitlines() if line.startswith(f"│ {method} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_run_stands_beside_the_paper_in_the_table_and_in_csv(tmp_path, monkeypatch):
    save_three(tmp_path / "runs")
    output = succeed("paper", "runs", "--csv", "beside.csv", cwd=tmp_path).stdout
    figures = ["87.19 +0.00", "88.87 +0.00", "94.63 +2.00*", "91.46 +0.00", "89.89 +0.00", "88.92 +0.00", "90.00 +0.17"]
    assert cells(output, "msp") == ["msp", *figures]
    assert "knn: untuned here, tuned on OOD data in the paper" in output
    assert "†" not in output
    lines = read_rows(tmp_path / "beside.csv")
    assert len(lines) == 28
    first = {"method": "msp", "dataset": "cifar100", "metric": "auroc", "reported": "87.19", "inside": "True"}
    assert (first | {"remark": "", "table": "cifar10", "family": "net"}).items() <= lines[0].items()
    assert [float(lines[0][name]) for name in ("measured", "low", "high")] == pytest.approx([87.19, 86.19, 88.19])
    wrong = Contradiction("cifar10", "MSP", "Average", "auroc", 89.83, 89.01)
    monkeypatch.setattr("flatfold.paper.tables.contradictions", lambda: [wrong])
    output = succeed("paper", "runs", cwd=tmp_path).stdout
    assert cells(output, "msp")[-1] == "90.00 +0.17†"
    assert "89.01" in output


def test_reported_numbers_inside_the_intervals_are_counted(tmp_path):
    save_three(tmp_path / "a", methods=("msp",))
    # 7 FPR95 whose intervals hold everything; 7 AUROCs of which MNIST's is 2 points off
    assert "13 of 14 reported numbers" in succeed("paper", "a", cwd=tmp_path).stdout
    save_three(tmp_path / "b", methods=("msp",), certain=False)
    assert len(json.loads(succeed("paper", "a", "--json", cwd=tmp_path).stdout)["lines"]) == 14
    output = succeed("paper", "b", cwd=tmp_path).stdout
    assert "0 of 0 reported numbers" in output
    assert cells(output, "msp")[3] == "94.63 +2.00", "no star without an interval"


def test_each_family_has_tables_of_its_own_and_only_some_are_not_comparable(tmp_path):
    save_run(tmp_path / "a", family="one[1]")
    save_run(tmp_path / "b", family="two", deviations=["Only 100 [test] images."])
    assert_mistakes(("paper", "."), [([], 1, "Only 100 [test] images")], tmp_path)
    output = succeed("paper", ".", "--anyway", cwd=tmp_path).stdout
    assert output.index("one[1] and Table 8") < output.index("two and Table 8")
    assert output.count("networks: 1 here, 3 in the paper") == 2
    assert output.count("NOT COMPARABLE") == output.count("NOT COMPARABLE: two and") == 2


def test_folders_of_several_benchmarks_are_averaged(tmp_path):
    for name, places in (("cifar10", SETS), ("cifar100", {"cifar10": "near", **SETS})):
        sets = {place: group for place, group in places.items() if place != name}
        results = make_results(methods=("msp", "fold"), sets=sets, name=name, protocol=f"openood-1.5/{name}")
        results.suite.update(architecture="openood/resnet18_32x32", deviations=[])
        results.save(tmp_path / name)
    output = words(succeed("paper", "cifar10", "cifar100", "--csv", "means.csv", cwd=tmp_path).stdout)
    assert "mean over 2 benchmarks and Table 2 of the paper, main: AUROC" in output
    assert "FOLD-R 87.91 and ReAct 86.28, better by 1.63 points" in output
    assert "The claim holds here: average AUROC over 2 benchmarks: fold" in output
    means = [row for row in read_rows(tmp_path / "means.csv") if row["table"] == "main"]
    assert {(row["method"], row["metric"]) for row in means} == set(product(("msp", "fold"), ("auroc", "fpr95")))


@pytest.mark.usefixtures("terminal")
def test_a_narrow_terminal_gets_the_averages(tmp_path):
    save_three(tmp_path)
    output = flatfold("paper", tmp_path, columns=80).stdout
    assert "90.00 +0.17" in output
    assert "texture" not in output
    assert "too narrow" in output


def test_mistakes(tmp_path):
    save_three(tmp_path / "runs", protocol="")
    cases = [
        (["runs"], 1, "--table"),
        (["runs", "--anyway"], 1, "--table"),
        (["--anyway"], 2, "--anyway"),
        (["--csv", "x.csv"], 2, "--csv"),
        (["empty"], 1, "results.json"),
        (["runs", "more", "--table", "cifar10"], 2, "--table"),
        (["--table", "12"], 1, "11 (imagenet1k)"),
        (["runs", "--table", "2"], 1, "main"),
        (["--figure", "16"], 1, "Figures 1 to 15"),
        (["runs", "--figure", "1"], 2, "--figure"),
    ]
    assert_mistakes(("paper",), cases, tmp_path)
    output = succeed("paper", "runs", "--anyway", "--table", "cifar100", cwd=tmp_path).stdout
    assert "and Table 9 of the paper, cifar100: AUROC" in output
    assert output == succeed("paper", "runs", "--anyway", "--table", "9", cwd=tmp_path).stdout


def test_every_table_of_the_paper_can_be_printed_whole():
    listed = words(flatfold("paper").stdout)
    assert all(str(contradiction) in listed for contradiction in contradictions())
    for name, layout in TABLES.items():
        assert f"{layout.number} {name} {layout.about}" in listed
        output = succeed("paper", "--table", name).stdout
        assert ("…" in output, f"Table {layout.number}, {name}: {layout.about}" in output) == (False, True)
        assert output == succeed("paper", "--table", str(layout.number)).stdout
        assert output.count("\n†") == sum(c.table == name for c in contradictions()), name


@pytest.mark.usefixtures("terminal")
@pytest.mark.slow
def test_a_narrow_terminal_gets_tables_of_the_paper_in_parts_without_wrapped_cells():
    for name in TABLES:
        shown = sorted(f"{number.value:.{TABLES[name].digits}f}" for number in read_table(name))
        for width in (100, 60):
            lines = flatfold("paper", "--table", name, columns=width).stdout.splitlines()
            table = [line for line in lines if line.startswith(("│", "┃", "┏"))]
            assert "…" not in "".join(table), (name, width)
            assert max(map(len, table)) <= width, (name, width)
            cells = [cell for line in table if line.startswith("│") for cell in line.strip("│").split("│")[1:]]
            figures = [part.split(" ± ")[0].rstrip("†") for cell in cells for part in cell.strip().split(" / ") if part]
            assert sorted(figures) == shown, (name, width)


def test_a_figure_is_found_by_its_number_in_the_paper():
    claims = read_claims()
    for number in range(1, 16):
        (claim,) = {claim.number for claim in claims.values() if number in claim.figures}
        output = succeed("paper", "--figure", number).stdout
        assert output.startswith(f"{claim}: {claims[claim].title}\n"), number
        assert words(claims[claim].claim) in words(output), number
    assert json.loads(succeed("paper", "--figure", 13, "--json").stdout)["figure"] == "Figures 12 to 15"


def test_a_table_shows_its_numbers_as_the_paper_does():
    for table, row, figures in [
        ("cifar10", "KNN", "91.56 / 30.37"),
        ("partial_normalisation", "ImageNet-200, alpha = 1", "79.02† / 81.19"),
        ("partial_normalisation", "CIFAR-10, alpha = 1", "91.34 / 36.71"),
        ("hessian_parameter", "ImageNet-200", "1147.9 ± 11.7† / 55558.4 ± 1435.6†"),
        ("hessian_parameter", "ImageNet-1K", "702.4 / 26834.2"),
    ]:
        assert figures in cells(flatfold("paper", "--table", table).stdout, row), (table, row)

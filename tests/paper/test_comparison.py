"""Means of curvature over seeds, and the paper's tables of curvature, normalisation and logits beside a run."""

from dataclasses import replace

import numpy as np
import pytest

from flatfold.paper.comparison import COMPARED, average_seeds, compare_curvature, find_paper_numbers
from flatfold.paper.measurements import statistic
from flatfold.paper.page import build_content
from flatfold.paper.tables import read_table
from tests.toy_ablations import make_ablations, make_network_run, make_results
from tests.toy_study import make_study

SETS = dict.fromkeys(("cifar100", "tin"), "near") | dict.fromkeys(("mnist", "svhn", "texture", "places365"), "far")
CIFAR = {"protocol": "openood-1.5/cifar10", "architecture": "openood/resnet18_32x32"}


@pytest.fixture(scope="module")
def seeds():
    """Three networks of one family whose curvatures are 1, 2 and 3 times those of the first."""
    study, ablations, runs = make_study(SETS), make_ablations(SETS), []
    for times in (1, 2, 3):
        results = make_results(sets=SETS, network=f"s{times}", family="resnet18", **CIFAR)
        results.provenance["weights, sha256"] = str(times) * 64
        changed = replace(study, statistics=[replace(s, value=times * s.value) for s in study.statistics])
        runs.append(make_network_run(f"s{times}", results=results, study=changed, ablations=ablations))
    return runs


def test_means_over_seeds_have_the_deviation_of_the_population(seeds):
    first = seeds[0].study
    rows = {row.data: row for row in average_seeds(seeds, ("parameter", "feature"), by_data_set=True)}
    assert list(rows) == first.datasets
    for name, row in rows.items():
        values = [
            first.cells[name, space, kind].value
            for space in ("parameter", "feature")
            for kind in ("lambda_max", "trace")
        ]
        assert np.array(row.cells) == pytest.approx(np.array([(2 * v, v * (2 / 3) ** 0.5) for v in values]))
    assert (rows["id"].family, rows["id"].n) == ("resnet18", 3)
    assert [row.data for row in average_seeds(seeds, ("feature",), by_data_set=False)] == ["id", "near", "far"]
    assert average_seeds(seeds[:1], ("feature",), by_data_set=False) == []


def test_the_papers_numbers_are_those_of_the_table_and_ours_are_means_over_networks(seeds):
    study, ablations = seeds[0].study, seeds[0].ablations
    effect = ablations.effect("msp", "full")
    far, svhn = (2 * statistic(study, at, "feature", "trace").value for at in ("far", "svhn"))
    expected = {  # by table: method, column and metric, then the paper's number and ours
        "Table 1": (
            "over parameters",
            "ID",
            "lambda_max",
            202.8,
            2 * study.cells["id", "parameter", "lambda_max"].value,
        ),
        "Table 3": ("msp", "full, α 1", "fpr95", 27.84, 100 * effect.fpr95),
        "Table 4": ("trace over logits", "all", "auroc", 92.52, None),
        "Table 6": ("over features x 1000", "far", "trace", None, 1000 * far),
        "Table 7": ("over features x 1000", "svhn", "trace", None, 1000 * svhn),
    }
    for number, (method, column, metric, reported, measured) in expected.items():
        lines = compare_curvature(seeds, number)
        (line,) = [x for x in lines if (x.method, x.dataset, x.metric) == (method, column, metric)]
        assert reported is None or line.reported == reported, number
        assert measured is None or line.measured == pytest.approx(measured), number
        assert line.difference == pytest.approx(line.measured - line.reported)
        assert (line.low is None) == (number == "Table 3")
        assert "networks" not in line.remark
    lengths = {number: len(compare_curvature(seeds, number)) for number in COMPARED}
    assert lengths == {"Table 1": 6, "Table 3": 42, "Table 4": 2, "Table 6": 6, "Table 7": 28}
    effects = [effect for effect in ablations.effects if effect.method != "msp"]
    less = [*seeds[1:], seeds[0]._replace(ablations=replace(ablations, effects=effects))]  # one network lacks a method
    assert "msp" not in {line.method for line in compare_curvature(less, "Table 3")}
    assert "± 23.0 in the paper" in compare_curvature(seeds, "Table 1")[0].remark
    assert "networks: 1 here, 3 in the paper" in compare_curvature(seeds[:1], "Table 1")[0].remark
    assert set(COMPARED) < set(find_paper_numbers(seeds))
    assert compare_curvature([make_network_run()], "Table 1") == find_paper_numbers([make_network_run()]).get(1, [])
    assert {n.column for n in read_table("hessian_parameter")} == {"ID", "Near-OOD", "Far-OOD"}


def test_means_over_seeds_stand_in_the_columns_of_the_csv_file(seeds):
    for number in ("Table 1", "Table 7"):
        *_, last = build_content(number, seeds).lines
        assert list(last) == list(build_content(number, seeds).lines[0]), number
        assert last["network"] == "mean of 3: resnet18"

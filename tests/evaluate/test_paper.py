"""The paper's tables as they are printed, their contradictions found by arithmetic, and runs beside them."""

from statistics import fmean

import pytest

from flatfold.core.student import quantile
from flatfold.detectors import get_method
from flatfold.evaluate import paper
from flatfold.evaluate.paper import BETWEEN, NOTES, TABLES, Contradiction, beside_paper, contradictions, read_table
from flatfold.evaluate.paper_tables import HERE
from flatfold.evaluate.paper_tables.benchmarks import CHECKPOINTS, COLUMNS, NETWORKS, TUNED, labels, suite_column
from flatfold.evaluate.results import Results
from flatfold.evaluate.rows import Certainty, MethodRun, Row, averages

CIFAR10 = {
    "cifar100": "near",
    "tin": "near",
    "mnist": "far",
    "svhn": "far",
    "texture": "far",
    "places365": "far",
}
IMAGENET = {"ssb_hard": "near", "ninco": "near", "inaturalist": "far", "textures": "far", "openimage_o": "far"}
KNOWN = {"protocol": "openood-1.5/cifar10", "architecture": "openood/resnet18_32x32", "deviations": []}


def make_run(value=0.9, *, methods=("msp", "knn@ood"), sets=CIFAR10, half=0.01, **suite):
    """A run in which every AUROC is ``value``, every FPR95 (OOD positive) half of it."""
    ends = {"auroc": (value - half, value + half), "fpr95_ood_positive": (value / 2 - half, value / 2 + half)}
    certainty = Certainty(ends, 0.0, 0.0, 0.0, 1.0, True) if half else None
    rows = [
        Row(method, "nothing", name, group, value, value / 2, 0.11, 0.12, 0.13, 10, 10, certainty)
        for method in methods
        for name, group in sets.items()
    ]
    return Results(
        suite={"name": "toy", "family": "net", "ood": [{"name": name} for name in sets], **KNOWN, **suite},
        methods=[MethodRun(method, method, {}, "nothing", "nothing", 0.1, 1.0) for method in methods],
        refused={},
        rows=rows,
        averages=[mean.__class__(**{**vars(mean), "certainty": certainty}) for mean in averages(rows)],
        alpha_curves=[],
        provenance={},
        scores={},
    )


def three(**kind):
    return [make_run(value, **kind) for value in (0.89, 0.9, 0.91)]


def find(lines, method="msp", dataset="tin", metric="auroc"):
    (line,) = [line for line in lines if (line.method, line.dataset, line.metric) == (method, dataset, metric)]
    return line


def test_every_file_is_a_table_and_every_table_is_complete():
    assert {path.stem for path in HERE.glob("*.csv")} == set(TABLES)
    for name in TABLES:
        numbers = read_table(name)
        places = {(number.row, number.column, number.metric) for number in numbers}
        assert len(places) == len(numbers)
        if name != "hessian_per_dataset":  # whose rows have different data sets
            assert len(numbers) == len({p[0] for p in places}) * len({p[1] for p in places}) * len(
                {p[2] for p in places}
            )
    assert sum(map(len, map(read_table, TABLES))) == 1606


@pytest.mark.parametrize(
    ("table", "row", "column", "metric", "value"),
    [
        ("main", "AutoFold-A", "Average", "fpr95", None),
        ("cifar10", "KNN", "TIN", "fpr95", 30.37),
        ("cifar10", "FOLD-R", "Average", "auroc", 92.30),
        ("imagenet1k_architectures", "ASH", "ResNeXt", "auroc", 88.93),
        ("partial_normalisation", "ImageNet-200, alpha = 1", "MSP", "fpr95", 40.39),
        ("logit_vs_feature_hessian", "Feature", "CIFAR-100", "auroc", 81.94),
        ("hessian_parameter", "ImageNet-200", "Far-OOD", "trace", 55558.4),
        ("hessian_per_dataset", "feature (x1e-3), CIFAR-100", "MNIST", "lambda_max", 221.3),
    ],
)
def test_numbers_are_where_the_paper_prints_them(table, row, column, metric, value):
    (number,) = [n for n in read_table(table) if (n.row, n.column, n.metric) == (row, column, metric)]
    if value is None:  # the mean of the four averages of the tables by data set
        four = [
            n.value
            for benchmark in ("cifar10", "cifar100", "imagenet200", "imagenet1k")
            for n in read_table(benchmark)
            if (n.row, n.column, n.metric) == (row, column, metric)
        ]
        value = pytest.approx(fmean(four), abs=0.01)
    assert number.value == value


def test_the_main_table_repeats_the_averages_of_the_tables_by_data_set():
    main = {(n.row, n.column, n.metric): n.value for n in read_table("main")}
    columns = {
        "cifar10": "CIFAR-10",
        "cifar100": "CIFAR-100",
        "imagenet200": "ImageNet-200",
        "imagenet1k": "ImageNet-1K",
    }
    for table, column in columns.items():
        for number in read_table(table):
            if number.column == "Average":
                assert main[number.row, column, number.metric] == number.value


def test_deviations_are_there_where_several_networks_were_measured():
    for number in read_table("hessian_parameter"):
        assert (number.std is None) == (number.row == "ImageNet-1K")
    assert all(number.std is None for number in read_table("cifar10"))


def test_a_table_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"no table called 'cifar'\. It has main, cifar10, "):
        read_table("cifar")


def test_the_contradictions_are_those_that_arithmetic_finds():
    found = {(c.table, c.row, c.column, c.metric): c for c in contradictions()}
    small = "ImageNet-200"
    assert {place: (c.printed, round(c.recomputed, 2)) for place, c in found.items()} == {
        ("partial_normalisation", f"{small}, alpha = 0", "Average", "auroc"): (87.64, 88.14),
        ("partial_normalisation", f"{small}, 0 < alpha < 1", "Average", "auroc"): (89.91, 88.68),
        ("partial_normalisation", f"{small}, alpha = 1", "Average", "auroc"): (79.02, 66.71),
        ("logit_vs_feature_hessian", "Logit", "Average", "auroc"): (86.02, 86.06),
        ("logit_vs_feature_hessian", "Feature", "Average", "auroc"): (86.81, 87.20),
        ("hessian_parameter", small, "Far-OOD", "lambda_max"): (1147.9, 1627.33),
        ("hessian_parameter", small, "Far-OOD", "trace"): (55558.4, 53740.13),
        ("hessian_feature_milli", small, "Far-OOD", "lambda_max"): (67.4, 70.27),
        ("hessian_feature_milli", small, "Far-OOD", "trace"): (1415.4, 1470.37),
    }
    assert {c.table for c in found.values() if c.without == "iNaturalist"} == {
        "hessian_parameter",
        "hessian_feature_milli",
    }


def test_a_contradiction_says_where_it_is_and_gives_both_numbers():
    texts = list(map(str, contradictions()))
    assert texts[3] == (
        "logit_vs_feature_hessian, Logit, Average, auroc: 86.02 is printed, the mean of its parts is 86.06"
    )
    assert texts[5].endswith(
        "lambda_max: 1147.9 is printed, the mean of its parts is 1627.3 (1147.9 without iNaturalist)"
    )


def test_the_numbers_in_the_notes_are_the_papers():
    trace = {
        n.column: n.value for n in read_table("hessian_feature_milli") if (n.row, n.metric) == ("CIFAR-100", "trace")
    }
    assert f"{trace['ID']}, {trace['Near-OOD']}, {trace['Far-OOD']}" in NOTES[0]
    ours = {"FOLD", "FOLD-R", "FOLD-A", "AutoFold", "AutoFold-R", "AutoFold-A"}
    assert len({n.row for n in read_table("cifar10")} - ours) == 13


def test_every_method_of_the_paper_is_ours_and_those_with_a_choice_were_tuned():
    names = {number.row.lower() for number in read_table("cifar10")}
    grids = {name: get_method(name).grid for name in names}  # which refuses a name that is not registered
    assert {name for name, grid in grids.items() if any(len(values) > 1 for values in grid.values())} == TUNED
    assert labels("FOLD-R") == ["fold-r@ood", "fold-r", "fold-r@id"]
    assert labels("AutoFold") == ["autofold", "autofold@ood", "autofold@id"]


@pytest.mark.parametrize(("table", "sets"), [("cifar10", CIFAR10), ("imagenet200", IMAGENET), ("imagenet1k", IMAGENET)])
def test_every_column_of_a_benchmark_has_a_data_set_of_the_suite(table, sets):
    suite = {"ood": [{"name": name} for name in sets]}
    columns = list(dict.fromkeys(number.column for number in read_table(table)))
    assert [suite_column(column, table, suite) for column in columns] == [*sets, "all"]


def test_reported_and_measured_stand_side_by_side_in_per_cent():
    lines = beside_paper(three())
    assert len(lines) == 2 * 7 * 2
    auroc, fpr = find(lines), find(lines, metric="fpr95")
    assert (auroc.reported, fpr.reported) == (88.87, 43.27)
    assert auroc.measured == pytest.approx(90.0)
    assert fpr.measured == pytest.approx(45.0)  # OOD positive: the other FPR95 is 11
    assert auroc.difference == pytest.approx(1.13)
    assert (auroc.table, auroc.family, auroc.remark) == ("cifar10", "net", "")
    half = (1 + quantile(0.95, 2) ** 2 / 3) ** 0.5  # of the images, 1 %; of the seeds, which vary by 1 %
    assert (auroc.low, auroc.high) == pytest.approx((90 - half, 90 + half))
    assert find(lines, dataset="all").reported == 89.83
    assert find(lines, dataset="texture").reported == 89.89


def test_the_lines_come_in_the_order_of_the_paper():
    lines = beside_paper(three(methods=("knn@ood", "msp")))
    assert list(dict.fromkeys(line.method for line in lines)) == ["msp", "knn@ood"]
    assert list(dict.fromkeys(line.dataset for line in lines)) == [*CIFAR10, "all"]


@pytest.mark.parametrize(
    ("measured", "inside"),
    [(0.8987, True), (0.89874, True), (0.89876, False), (0.8787, True), (0.87864, False)],  # reported: 88.87, rounded
)
def test_a_reported_number_is_inside_give_or_take_its_rounding(measured, inside):
    lines = beside_paper([make_run(measured)] * 3)
    assert find(lines).inside is inside


def test_without_an_interval_nothing_is_inside():
    line = find(beside_paper([make_run(0.8887, half=0)] * 3))
    assert (line.low, line.high, line.inside, line.remark) == (None, None, False, "without an interval")


def test_another_number_of_networks_is_a_remark():
    assert find(beside_paper([make_run()])).remark == "networks: 1 here, 3 in the paper"
    one = {"protocol": "openood-1.5/imagenet1k", "architecture": "openood/resnet50"}
    assert find(beside_paper([make_run(sets=IMAGENET, **one)]), dataset="ninco").remark == ""


@pytest.mark.parametrize(
    ("run", "method", "remark"),
    [
        (("knn", "knn@ood"), "knn@ood", ""),
        (("knn@id", "knn"), "knn", "untuned here, tuned on OOD data in the paper"),
        (("knn@id",), "knn@id", "tuned on ID data here, tuned on OOD data in the paper"),
        (("msp@ood",), "msp@ood", "tuned on OOD data here, untuned in the paper"),
        (("autofold-r",), "autofold-r", "the released code also chose a setting on OOD data"),
    ],
)
def test_a_method_is_compared_as_the_paper_tuned_it_or_else_says_so(run, method, remark):
    lines = beside_paper(three(methods=run))
    assert {line.method for line in lines} == {method}
    assert {line.remark for line in lines} == {remark}


def test_methods_with_their_own_hyper_parameters_are_not_those_of_the_paper():
    lines = beside_paper(three(methods=("msp", "knn:k=10@ood", "gen")))
    assert {line.method for line in lines} == {"msp"}


def test_each_architecture_has_its_column():
    assert list(NETWORKS) == list(CHECKPOINTS)
    expected = {"RegNet": 88.05, "DenseNet": 79.8, "WRN": 83.19, "ResNeXt": 82.0}
    runs = [
        make_run(sets=IMAGENET, protocol="openood-1.5/imagenet1k", architecture=architecture, family=column)
        for architecture, column in COLUMNS.items()
    ]
    lines = [line for line in beside_paper(runs) if (line.method, line.metric) == ("msp", "auroc")]
    assert {line.family: line.reported for line in lines} == expected
    assert {(line.table, line.dataset) for line in lines} == {("imagenet1k_architectures", "all")}
    remarks = {line.family: line.remark for line in lines}
    assert remarks.pop("DenseNet") == "the released code leaves out this network's last ReLU"
    assert set(remarks.values()) == {""}


def test_a_contradictory_number_carries_the_mark_and_both_numbers(monkeypatch):
    wrong = Contradiction("cifar10", "MSP", "Average", "auroc", 89.83, 89.01)
    elsewhere = Contradiction("cifar100", "MSP", "TIN", "auroc", 1.0, 2.0)
    monkeypatch.setattr(paper, "contradictions", lambda: [wrong, elsewhere])
    lines = beside_paper(three())
    assert find(lines, dataset="all").remark == "† 89.83 is printed, the mean of its parts is 89.01"
    assert [line.dataset for line in lines if "†" in line.remark] == ["all"]


NOT_COMPARABLE = [
    ({"protocol": ""}, "net: the suite toy does not follow one of the paper's benchmarks"),
    ({"protocol": None, "architecture": None}, "does not follow one of the paper's benchmarks"),
    ({"protocol": "openood-1.5/imagenet1k_architectures"}, "does not follow one of the paper's benchmarks"),
    ({"protocol": "openood-1.0/cifar10"}, "does not follow one of the paper's benchmarks"),
    ({"architecture": "my/net"}, r"the architecture is my/net, the paper's is openood/resnet18_32x32\. "),
    ({"architecture": ""}, "the architecture is not known, the paper's is openood/resnet18_32x32"),
    ({"deviations": ["Only 100 images.", "Accuracy is 10 %."]}, r"net: Only 100 images; Accuracy is 10 %\. --anyway"),
    ({"architecture": "my/net", "deviations": ["Few."]}, "the architecture is my/net, .*; Few"),
]


@pytest.mark.parametrize(("suite", "message"), NOT_COMPARABLE)
def test_what_is_not_comparable_is_refused_with_every_reason(suite, message):
    with pytest.raises(ValueError, match=message) as raised:
        beside_paper(three(**suite))
    assert str(raised.value).startswith("these numbers are not comparable with the paper's. net: ")
    homeless = "protocol" in suite
    tables = " with --table and one of cifar10, cifar100, imagenet200, imagenet1k, imagenet1k_architectures"
    ending = f"--anyway{tables if homeless else ''} shows them side by side, each marked as not comparable."
    assert str(raised.value).endswith(f". {ending}")


def test_a_suite_that_says_nothing_of_its_protocol_is_refused():
    run = make_run()
    for key in KNOWN:
        del run.suite[key]
    with pytest.raises(ValueError, match="does not follow one of the paper's benchmarks"):
        beside_paper([run])


@pytest.mark.parametrize(
    "deviation", ["the network brought a transform of its own", "the network has a head of its own"]
)
def test_a_network_that_brought_more_than_the_papers_is_refused(deviation):
    """The architecture's name is the paper's; only the deviation tells that the network is not."""
    with pytest.raises(ValueError, match=f"not comparable with the paper's. net: {deviation}. --anyway"):
        beside_paper(three(deviations=[deviation]))


def with_weights(*sums):
    runs = [make_run(network=f"s{number}") for number in range(len(sums))]
    for run, weights in zip(runs, sums, strict=True):
        run.provenance["weights, sha256"] = weights
    return runs


@pytest.mark.parametrize("anyway", [False, True])
def test_one_network_does_not_count_twice(anyway):
    one, two = "a" * 64, "b" * 64
    message = (
        r"the runs of net must be of different networks, but s0 and s2 have the same weights \(sha256 aaaaaaaaaaaa\)\. "
        r"Leave one of them out\."
    )
    with pytest.raises(ValueError, match=message):
        beside_paper(with_weights(one, two, one), anyway=anyway)
    assert find(beside_paper(with_weights(one, two, "c" * 64))).remark == ""


def test_a_network_may_be_in_two_families_and_runs_without_a_sum_are_believed():
    runs = with_weights("a" * 64, "a" * 64)
    runs[1].suite["family"] = "other"
    assert {line.family for line in beside_paper(runs)} == {"net", "other"}
    assert find(beside_paper(with_weights(None, None, None))).remark == ""


def test_one_run_of_a_family_that_deviates_is_enough():
    with pytest.raises(ValueError, match=r"paper's\. net: Limited\. --anyway"):
        beside_paper([make_run(), make_run(deviations=["Limited."]), make_run(deviations=["Limited."])])


@pytest.mark.parametrize(("suite", "message"), NOT_COMPARABLE)
def test_anyway_every_line_says_first_that_it_is_not_comparable(suite, message):
    lines = beside_paper(three(methods=("msp", "knn"), **suite), table="cifar10", anyway=True)
    assert len(lines) == 2 * 7 * 2
    assert all(line.remark.startswith("not comparable: the ") or "deviations" in suite for line in lines)
    assert all(line.remark.startswith("not comparable: ") for line in lines)
    assert find(lines, "knn").remark.split(BETWEEN)[1:] == ["untuned here, tuned on OOD data in the paper"]
    assert find(lines).reported == 88.87


def test_only_the_family_that_is_not_comparable_is_marked_so():
    lines = beside_paper([*three(), *three(family="other", deviations=["Few."])], anyway=True)
    assert {line.family: line.remark for line in lines} == {"net": "", "other": "not comparable: Few"}
    assert {line.family: line.comparable for line in lines} == {"net": True, "other": False}


def test_another_table_than_the_suites_own_is_not_comparable():
    with pytest.raises(ValueError, match="toy belongs to the table cifar10, not to cifar100"):
        beside_paper(three(), table="cifar100")
    lines = beside_paper(three(), table="cifar100", anyway=True)
    assert find(lines).reported == 82.07
    assert {line.table for line in lines} == {"cifar100"}
    assert "all" not in {line.dataset for line in lines}  # the paper's has CIFAR-10 instead of CIFAR-100


def test_an_average_over_other_data_sets_is_not_compared():
    for sets in ({**CIFAR10, "noise": "far"}, {"tin": "near", "textures": "far"}):
        lines = beside_paper(three(sets=sets))
        assert {line.dataset for line in lines} == (CIFAR10.keys() | {"textures"}) & sets.keys()


def test_a_suite_without_a_protocol_needs_a_table():
    with pytest.raises(ValueError, match=r"net belongs to no table of the paper\. Name one with --table: cifar10, "):
        beside_paper(three(protocol=""), anyway=True)


def test_only_tables_of_benchmarks_can_be_compared():
    with pytest.raises(ValueError, match=r"no run has the numbers of the table main\. Choose one of cifar10, "):
        beside_paper(three(), table="main", anyway=True)
    with pytest.raises(ValueError, match="no table called 'cifar'"):
        beside_paper(three(), table="cifar", anyway=True)


@pytest.mark.parametrize("kind", [{"methods": ("gen",)}, {"sets": {"noise": "far"}}])
def test_nothing_in_common_is_refused(kind):
    with pytest.raises(ValueError, match=r"have no method on a data set in common\. `flatfold paper --table NAME`"):
        beside_paper(three(**kind))

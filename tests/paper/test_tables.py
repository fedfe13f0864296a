"""The paper's tables as they are printed, their contradictions found by arithmetic, and runs beside them."""

import pytest

from flatfold.core.intervals import student_quantile
from flatfold.detectors import get_method
from flatfold.paper import tables as paper
from flatfold.paper.comparison import BETWEEN, average_benchmarks, compare_with_paper
from flatfold.paper.tables import (
    CHECKPOINTS,
    COLUMNS,
    NETWORKS,
    NOTES,
    TABLES,
    TUNED,
    Contradiction,
    contradictions,
    find_table,
    read_table,
    run_labels,
)
from tests.evaluate import runs

CIFAR10 = {"cifar100": "near", "tin": "near"} | dict.fromkeys(("mnist", "svhn", "texture", "places365"), "far")
IMAGENET = {"ssb_hard": "near", "ninco": "near", "inaturalist": "far", "textures": "far", "openimage_o": "far"}
KNOWN = {"protocol": "openood-1.5/cifar10", "architecture": "openood/resnet18_32x32", "deviations": []}


def make_run(value=0.9, *, methods=("msp", "knn@ood"), sets=CIFAR10, half=0.01, **suite):
    ends = {"auroc": (value - half, value + half), "fpr95_ood_positive": (value / 2 - half, value / 2 + half)}
    known = {"family": "net", **KNOWN, **suite}
    return runs.make_run(value, methods=methods, sets=sets, ends=ends if half else None, **known)


def three(**kind):
    return [make_run(value, **kind) for value in (0.89, 0.9, 0.91)]


def find(lines, method="msp", dataset="tin", metric="auroc"):
    (line,) = [line for line in lines if (line.method, line.dataset, line.metric) == (method, dataset, metric)]
    return line


def test_every_table_is_complete_and_numbers_are_where_the_paper_prints_them():
    for name in TABLES:
        numbers = read_table(name)
        places = {(number.row, number.column, number.metric) for number in numbers}
        assert len(places) == len(numbers)
        if name != "hessian_per_dataset":  # whose rows have different data sets
            rows, columns, metrics = (len(set(part)) for part in zip(*places, strict=True))
            assert len(numbers) == rows * columns * metrics, name
    assert sum(map(len, map(read_table, TABLES))) == 1606
    assert run_labels("FOLD-R") == ["fold-r@ood", "fold-r", "fold-r@id"]
    assert run_labels("AutoFold") == ["autofold", "autofold@ood", "autofold@id"]
    grids = {number.row.lower(): get_method(number.row.lower()).grid for number in read_table("cifar10")}
    assert {name for name, grid in grids.items() if any(len(values) > 1 for values in grid.values())} == TUNED
    with pytest.raises(ValueError, match="'cifar'"):
        find_table("cifar")
    for table, row, column, metric, value in (
        ("cifar10", "KNN", "TIN", "fpr95", 30.37), ("cifar10", "FOLD-R", "Average", "auroc", 92.30),
        ("imagenet1k_architectures", "ASH", "ResNeXt", "auroc", 88.93),
        ("partial_normalisation", "ImageNet-200, alpha = 1", "MSP", "fpr95", 40.39),
        ("logit_vs_feature_hessian", "Feature", "CIFAR-100", "auroc", 81.94),
        ("hessian_parameter", "ImageNet-200", "Far-OOD", "trace", 55558.4),
        ("hessian_per_dataset", "feature (x1e-3), CIFAR-100", "MNIST", "lambda_max", 221.3),
    ):  # fmt: skip
        (number,) = [n for n in read_table(table) if (n.row, n.column, n.metric) == (row, column, metric)]
        assert number.value == value, (table, row, column)
    main = {(n.row, n.column, n.metric): n.value for n in read_table("main")}  # repeats averages
    for column in ("CIFAR-10", "CIFAR-100", "ImageNet-200", "ImageNet-1K"):
        for number in read_table(column.lower().replace("-", "")):
            assert number.column != "Average" or main[number.row, column, number.metric] == number.value
    for number in read_table("hessian_parameter"):
        assert (number.std is None) == (number.row == "ImageNet-1K")  # where one network was measured
    assert all(number.std is None for number in read_table("cifar10"))


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
    without = {c.table for c in found.values() if c.without == "iNaturalist"}
    assert without == {"hessian_parameter", "hessian_feature_milli"}
    traces = [n.value for n in read_table("hessian_feature_milli") if (n.row, n.metric) == ("CIFAR-100", "trace")]
    assert ", ".join(map(str, traces)) in NOTES[0]


def test_reported_and_measured_stand_side_by_side_in_per_cent(monkeypatch):
    lines = compare_with_paper(three(methods=("knn@ood", "msp")))
    assert list(dict.fromkeys(line.method for line in lines)) == ["msp", "knn@ood"]  # in the order of the paper
    assert list(dict.fromkeys(line.dataset for line in lines)) == [*CIFAR10, "all"]
    assert len(lines) == 2 * 7 * 2
    auroc, fpr = find(lines), find(lines, metric="fpr95")
    assert (auroc.reported, fpr.reported) == (88.87, 43.27)
    assert auroc.measured == pytest.approx(90.0)
    assert fpr.measured == pytest.approx(45.0)  # OOD positive: the other FPR95 is 11
    assert auroc.difference == pytest.approx(1.13)
    assert (auroc.table, auroc.family, auroc.remark) == ("cifar10", "net", "")
    half = (1 + student_quantile(0.95, 2) ** 2 / 3) ** 0.5  # of the images, 1 %; of the seeds, which vary by 1 %
    assert (auroc.low, auroc.high) == pytest.approx((90 - half, 90 + half))
    assert find(lines, dataset="all").reported == 89.83
    assert find(lines, dataset="texture").reported == 89.89
    wrong = Contradiction("cifar10", "MSP", "Average", "auroc", 89.83, 89.01)
    elsewhere = Contradiction("cifar100", "MSP", "TIN", "auroc", 1.0, 2.0)
    monkeypatch.setattr(paper, "contradictions", lambda: [wrong, elsewhere])
    (line,) = [line for line in compare_with_paper(three()) if "†" in line.remark]
    assert (line.dataset, "89.83" in line.remark, "89.01" in line.remark) == ("all", True, True)


def test_a_reported_number_is_inside_give_or_take_its_rounding():
    for measured, inside in ((0.8987, True), (0.89874, True), (0.89876, False), (0.8787, True), (0.87864, False)):
        assert find(compare_with_paper([make_run(measured)] * 3)).inside is inside, measured  # reported: 88.87, rounded
    line = find(compare_with_paper([make_run(0.8887, half=0)] * 3))
    assert (line.low, line.high, line.inside) == (None, None, False)
    assert "interval" in line.remark
    assert "1 here, 3 in the paper" in find(compare_with_paper([make_run()])).remark
    one = {"protocol": "openood-1.5/imagenet1k", "architecture": "openood/resnet50"}
    assert find(compare_with_paper([make_run(sets=IMAGENET, **one)]), dataset="ninco").remark == ""


def test_a_method_is_compared_as_the_paper_tuned_it_or_else_says_so():
    for methods, method, *words in (
        (("knn", "knn@ood"), "knn@ood"), (("knn@id", "knn"), "knn", "untuned here"),
        (("knn@id",), "knn@id", "ID data here"), (("msp@ood",), "msp@ood", "untuned in the paper"),
        (("autofold-r",), "autofold-r", "released code"),
        (("msp", "knn:k=10@ood", "gen"), "msp"),  # the paper has no such methods
    ):  # fmt: skip
        lines = compare_with_paper(three(methods=methods))
        assert {line.method for line in lines} == {method}
        assert all(bool(line.remark) == bool(words) for line in lines), methods
        assert all(word in line.remark for word in words for line in lines), methods


def test_each_architecture_has_its_column():
    assert list(NETWORKS) == list(CHECKPOINTS)
    expected = {"RegNet": 88.05, "DenseNet": 79.8, "WRN": 83.19, "ResNeXt": 82.0}
    four = [
        make_run(sets=IMAGENET, protocol="openood-1.5/imagenet1k", architecture=architecture, family=column)
        for architecture, column in COLUMNS.items()
    ]
    lines = [line for line in compare_with_paper(four) if (line.method, line.metric) == ("msp", "auroc")]
    assert {line.family: line.reported for line in lines} == expected
    assert {(line.table, line.dataset) for line in lines} == {("imagenet1k_architectures", "all")}
    assert [line.family for line in lines if line.remark] == ["DenseNet"]  # whose last ReLU the released code drops


SUITES = {
    "cifar10": (CIFAR10, "openood/resnet18_32x32"),
    "cifar100": (
        {"cifar10": "near"} | {name: group for name, group in CIFAR10.items() if name != "cifar100"},
        "openood/resnet18_32x32",
    ),
    "imagenet200": (IMAGENET, "openood/resnet18_224x224"),
    "imagenet1k": (IMAGENET, "openood/resnet50"),
}


def benchmarks(*names, **kind):
    """Lines of one run of each benchmark, of which the n-th has AUROCs of 80 + n percent."""
    lines = []
    for place, name in enumerate(names):
        sets, architecture = SUITES[name]
        known = {"protocol": f"openood-1.5/{name}", "architecture": architecture, "name": name, **kind}
        lines += compare_with_paper([make_run(0.8 + place / 100, sets=sets, **known)])
    return lines


def test_the_mean_over_the_benchmarks_is_the_last_column_of_the_papers_table():
    means = average_benchmarks(benchmarks(*SUITES))
    assert [(line.method, line.metric) for line in means] == [
        (method, metric) for method in ("msp", "knn@ood") for metric in ("auroc", "fpr95")
    ]
    line = find(means, dataset="all")
    assert (line.table, line.reported, line.measured) == ("main", 84.35, pytest.approx(81.5))  # 80 to 83
    assert (line.low, line.high, line.inside) == (pytest.approx(80.5), pytest.approx(82.5), False)
    assert "cifar10, cifar100, imagenet200: networks: 1 here" in line.remark
    two = find(average_benchmarks(benchmarks("cifar10", "imagenet1k")), dataset="all")
    assert two.reported == pytest.approx((89.83 + 81.55) / 2)
    assert "2 of 4 benchmarks: cifar10, imagenet1k" in two.remark
    mixed = benchmarks("cifar10", methods=("knn@ood",)) + benchmarks("cifar100", methods=("knn", "msp"))
    assert {line.method for line in average_benchmarks(mixed)} == {"knn"}
    with pytest.raises(ValueError, match=r"at least 2.*got cifar10"):
        average_benchmarks(benchmarks("cifar10"))
    with pytest.raises(ValueError, match="net and other"):
        average_benchmarks(benchmarks(*SUITES) + benchmarks("cifar10", family="other"))


NOT_COMPARABLE = [
    ({"protocol": ""}, "toy"), ({"protocol": None, "architecture": None}, "benchmarks"),
    ({"protocol": "openood-1.5/imagenet1k_architectures"}, "benchmarks"),
    ({"protocol": "openood-1.0/cifar10"}, "benchmarks"), ({"architecture": "my/net"}, "my/net"),
    ({"architecture": ""}, "not known"),
    ({"deviations": ["Only 100 images.", "Accuracy is 10 %."]}, "Only 100 images; Accuracy is 10 %"),
    ({"architecture": "my/net", "deviations": ["Few."]}, "my/net.*; Few"),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "reason"), NOT_COMPARABLE)
def test_what_is_not_comparable_is_refused_with_every_reason_or_marked(suite, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        compare_with_paper(three(**suite))
    assert "anyway=" in str(raised.value)
    assert ("table=" in str(raised.value)) == ("protocol" in suite)
    lines = compare_with_paper(three(methods=("msp", "knn"), **suite), table="cifar10", anyway=True)
    assert len(lines) == 2 * 7 * 2
    assert all(line.remark.startswith("not comparable: ") for line in lines)
    (more,) = find(lines, "knn").remark.split(BETWEEN)[1:]
    assert "untuned here" in more
    assert find(lines).reported == 88.87


def test_one_run_that_deviates_or_says_nothing_is_enough_to_refuse():
    with pytest.raises(ValueError, match=r"net: Limited\."):
        compare_with_paper([make_run(), make_run(deviations=["Limited."]), make_run(deviations=["Limited."])])
    silent = make_run()
    for key in KNOWN:
        del silent.suite[key]
    with pytest.raises(ValueError, match="benchmarks"):
        compare_with_paper([silent])
    lines = compare_with_paper([*three(), *three(family="other", deviations=["Few."])], anyway=True)
    assert {line.family: line.remark for line in lines} == {"net": "", "other": "not comparable: Few"}
    assert {line.family: line.comparable for line in lines} == {"net": True, "other": False}


def test_one_network_does_not_count_twice_in_a_family():
    def with_weights(*sums):
        made = [make_run(network=f"s{number}") for number in range(len(sums))]
        for run, weights in zip(made, sums, strict=True):
            run.provenance["weights, sha256"] = weights and weights * 64
        return made

    for anyway in (False, True):
        with pytest.raises(ValueError, match="s0 and s2"):
            compare_with_paper(with_weights("a", "b", "a"), anyway=anyway)
    for sums in ("abc", (None, None, None)):
        assert find(compare_with_paper(with_weights(*sums))).remark == "", sums
    two_families = with_weights("a", "a")
    two_families[1].suite["family"] = "other"
    assert {line.family for line in compare_with_paper(two_families)} == {"net", "other"}


def test_runs_that_have_no_place_in_a_table_are_refused_and_other_averages_are_not_compared():
    with pytest.raises(ValueError, match="cifar10, not to cifar100"):
        compare_with_paper(three(), table="cifar100")
    lines = compare_with_paper(three(), table="cifar100", anyway=True)
    assert find(lines).reported == 82.07
    assert {line.table for line in lines} == {"cifar100"}
    assert "all" not in {line.dataset for line in lines}  # the paper's has CIFAR-10 instead of CIFAR-100
    for sets in ({**CIFAR10, "noise": "far"}, {"tin": "near", "textures": "far"}):
        lines = compare_with_paper(three(sets=sets))
        assert {line.dataset for line in lines} == (CIFAR10.keys() | {"textures"}) & sets.keys()
    for kind, arguments, keyword in (
        ({"protocol": ""}, {"anyway": True}, "table="), ({}, {"table": "main", "anyway": True}, "main"),
        ({}, {"table": "cifar", "anyway": True}, "'cifar'"), ({"methods": ("gen",)}, {}, "in common"),
        ({"sets": {"noise": "far"}}, {}, "in common"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=keyword):
            pytest.fail(f"{kind}: {compare_with_paper(three(**kind), **arguments)}")

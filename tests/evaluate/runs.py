"""Results of made-up runs, without a network."""

from flatfold.evaluate.results import Average, Certainty, MethodRun, Results, Row, columns_of

SETS = {"pens": "near", "noise": "far"}


def make_suite(sets=SETS, n=10, **more):
    """Return the facts about a suite that every result file has."""
    ood = [{"name": name, "group": group, "n": n, "about": ""} for name, group in sets.items()]
    facts = {"name": "toy", "network": "", "about": "", "n_classes": 3, "accuracy": 0.9, "n_test": n, "ood": ood}
    return facts | more


def make_run(value, *, methods=("msp", "ebo"), sets=SETS, ends=None, **suite):
    """A run in which every AUROC is ``value``, FPR95 (OOD positive) is half of it, and ``ends`` are the intervals."""
    certainty = None if ends is None else Certainty(ends, 0.0, 0.0, 0.0, 1.0, True)
    figures = (value, value / 2, 0.11, 0.12, 0.13)
    columns = [(method, "nothing", column) for method in methods for column in columns_of(sets)]
    return Results(
        suite=make_suite(sets, **suite),
        methods=[MethodRun(method, method, {}, "nothing", "nothing", 0.1, 1.0) for method in methods], refused={},
        rows=[Row(*column, sets[column[2]], *figures, 10, 10, certainty) for column in columns if column[2] in sets],
        averages=[Average(*column, "us", *figures, certainty) for column in columns if column[2] not in sets],
        alpha_curves=[], provenance={}, scores={},
    )  # fmt: skip

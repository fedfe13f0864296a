"""Results of made-up runs, without a network."""

from dataclasses import replace

from flatfold.evaluate.results import Certainty, MethodRun, Results, Row, averages

SETS = {"pens": "near", "noise": "far"}


def make_run(value, *, methods=("msp", "ebo"), sets=SETS, ends=None, **suite):
    """A run in which every AUROC is ``value``, FPR95 (OOD positive) is half of it, and ``ends`` are the intervals."""
    certainty = None if ends is None else Certainty(ends, 0.0, 0.0, 0.0, 1.0, True)
    rows = [
        Row(method, "nothing", name, group, value, value / 2, 0.11, 0.12, 0.13, 10, 10, certainty)
        for method in methods
        for name, group in sets.items()
    ]
    return Results(
        suite={"name": "toy", "ood": [{"name": name} for name in sets], **suite},
        methods=[MethodRun(method, method, {}, "nothing", "nothing", 0.1, 1.0) for method in methods], refused={},
        rows=rows, averages=[replace(mean, certainty=certainty) for mean in averages(rows)], alpha_curves=[],
        provenance={}, scores={},
    )  # fmt: skip

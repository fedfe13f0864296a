"""The table of results: a line per method, a column per data set and average."""

from collections.abc import Sequence

from ..evaluate.results import Results
from ..evaluate.rows import OPENOOD, PAPER, Average, MethodRun, Row
from .cells import between, head_cell, metric_cell, metric_switch, percent, table
from .family import in_family
from .markup import Html, joined, scrolling, tag

GROUPS = {"all": "All", "family": "FOLD family", "untuned": "Tuned on nothing"}
AVERAGES = {
    "near": ("near", f"mean, {OPENOOD}", f"Mean over the near data sets, as {OPENOOD} averages."),
    "far": ("far", f"mean, {OPENOOD}", f"Mean over the far data sets, as {OPENOOD} averages."),
    "all": ("average", f"mean, {PAPER}", f"Mean over all data sets, as the {PAPER} averages."),
}


def results_table(results: Results) -> Html:
    """Return the table, best average AUROC first, with its switches, which stay hidden until a script serves them."""
    lines = [_line(results, run) for run in results.ranked]
    made = table(_heads(results), lines, id="results-table", class_="sortable results")
    return joined([controls("results-table", len(lines)), scrolling(made, "Results of every method")])


def legend(results: Results) -> Html:
    """Return what the mark means, or why there is none."""
    if any(cell.certainty is not None for cell in results.cells.values()):
        meaning = (
            " is the best AUROC of a column and every other that cannot be told from it: in a paired test on the same "
            "images, the difference is not significant at 5 %, shared among all methods."
        )
        return joined([tag("span", "Marked", class_="mark"), meaning])
    return Html("No interval was computed for these results, so no method is marked as the best.")


def column_heads(results: Results, columns: Sequence[str]) -> list[Html]:
    """Return the heads of data sets and averages, by the last of which the table is sorted."""
    groups = {ood["name"]: ood["group"] for ood in results.suite["ood"]}
    abouts = {ood["name"]: ood["about"] for ood in results.suite["ood"]}
    heads = []
    for column in columns:
        sort = "descending" if column == columns[-1] else None
        if column in groups:
            heads.append(head_cell(column, groups[column], abouts[column], sort))
        else:
            heads.append(head_cell(*AVERAGES[column], sort=sort))
    return heads


def _heads(results: Results) -> list[Html]:
    last = [
        head_cell("α", title="Exponent of partial normalisation; * was chosen by AutoFold on ID validation data."),
        head_cell("tuned", title="Data that chose settings: known (ID) or unknown (OOD) inputs."),
    ]
    return [head_cell("method", text=True), *column_heads(results, results.columns), *last]


def _line(results: Results, run: MethodRun) -> Html:
    cells = [_cell(results.cells[run.method, column]) for column in results.columns]
    alpha = tag("td", run.alpha, data_sort=run.alpha.rstrip("*"))
    name = tag("th", run.method, scope="row")
    return tag("tr", name, *cells, alpha, tag("td", run.tuned), data_groups=groups_of(run))


def _cell(cell: Row | Average) -> Html:
    values, told = vars(cell), cell.certainty
    if told is None:
        return metric_cell(values, {})
    soft = {metric: between(interval) for metric, interval in told.intervals.items()}
    behind = f"{percent(told.behind)} behind the best ({between((told.behind_low, told.behind_high))})"
    title = "cannot be told from the best" if told.best and told.behind > 0 else "the best" if told.best else behind
    return metric_cell(values, soft, told.best, f"AUROC {soft['auroc']}: {title}" if "auroc" in soft else title)


def groups_of(run: MethodRun) -> str:
    """Return the groups of methods to which one belongs, as the buttons above a table know them."""
    return " ".join(["all"] + ["family"] * in_family(run) + ["untuned"] * (run.tuned_on == "nothing"))


def controls(table_id: str, count: int) -> Html:
    """Return the switches of a table with ``count`` methods, hidden until a script serves them."""
    groups = [
        tag("label", tag("input", type="radio", name="group", value=key, checked=key == "all"), tag("span", name))
        for key, name in GROUPS.items()
    ]
    return tag(
        "form",
        metric_switch("metric"),
        tag("fieldset", tag("legend", "Methods"), *groups, class_="choices group"),
        tag(
            "label",
            "Name ",
            tag("input", type="search", placeholder="filter, e.g. knn", autocomplete="off"),
            class_="search",
        ),
        tag("output", f"{count} of {count} methods"),
        tag("p", class_="nothing", role="status"),
        class_="controls",
        data_for=table_id,
        hidden=True,
    )

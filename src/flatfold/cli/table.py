"""Results as a table in the terminal."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..evaluate.results import Results
from ..evaluate.rows import Average, Row
from ..evaluate.summary import SummaryRow
from .console import open_console

LEGEND = (
    "AUROC / FPR95 in percent. FPR95 counts OOD as positive: the share of known inputs that raise an alarm "
    "when 95 % of the unknown ones do."
)
CELL, LAST = 16, 17  # columns of text that "99.99 / 99.99" takes, and the two last ones


def print_results(results: Results) -> None:
    """Print one line per method, best average AUROC first, and what it was tuned on.

    A narrow terminal gets the averages only, which a line below the table says; a pipe has no width to respect.
    """
    console = open_console()
    first = 3 + max(len(run.method) for run in results.methods)
    fits = first + LAST + sum(max(CELL, len(column) + 3) for column in results.columns) <= console.width
    console.print(_table(results, results.columns if fits else results.groups))
    if not fits:
        console.print("The terminal is too narrow for every data set; results.csv and the report have them.")
    if console.is_terminal and any(row.certainty is not None for row in results.rows):
        console.print("Green: the best AUROC of a column and every other that cannot be told from it (paired test).")
    if any("alpha_" in run.learnt for run in results.methods):
        console.print("* chosen by AutoFold on ID validation data")
    if any(run.tuned_on != "nothing" for run in results.methods):
        console.print("tuned: on which data hyper-parameters were chosen, known (ID) or unknown (OOD) inputs.")
    for reason in dict.fromkeys(results.refused.values()):
        methods = [method for method, other in results.refused.items() if other == reason]
        was = "was" if len(methods) == 1 else "were"
        console.print(f"{', '.join(methods)} {was} left out: {reason}", markup=False)
    for deviation in results.suite.get("deviations", ()):
        console.print(f"Before you compare: {deviation}.", markup=False, style="yellow")


def _table(results: Results, columns: list[str]) -> Table:
    cells = results.cells
    table = Table(title=_title(results), title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else column, justify="right", no_wrap=True)
    table.add_column("alpha", justify="right", no_wrap=True)
    table.add_column("tuned", no_wrap=True)
    for run in results.ranked:
        figures = (_figures(cells[run.method, column]) for column in columns)
        table.add_row(escape(run.method), *figures, run.alpha, run.tuned)
    return table


def _figures(cell: Row | Average) -> Text:
    figures = f"{100 * cell.auroc:.2f} / {100 * cell.fpr95_ood_positive:.2f}"
    best = cell.certainty is not None and cell.certainty.best
    return Text(figures, style="bold green" if best else "")


def _title(results: Results) -> str:
    suite = results.suite
    name = f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"]
    about = f"{suite['about']} " if suite["about"] else ""
    return f"{escape(name)}: {escape(about)}ID accuracy {100 * suite['accuracy']:.2f} % on {suite['n_test']} images."


def print_summary(rows: Sequence[SummaryRow]) -> None:
    """Print the means over the networks of each family that has several, best average AUROC first."""
    console = open_console()
    for family in dict.fromkeys(row.family for row in rows if row.n > 1):
        mine = [row for row in rows if row.family == family]
        console.print(_summary_table(family, mine))


def _summary_table(family: str, rows: Sequence[SummaryRow]) -> Table:
    title = f"{escape(family)}: mean ± spread (population standard deviation, as OpenOOD) over {rows[0].n} runs."
    table = Table(title=title, title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method", no_wrap=True)
    groups = [group for group in ("near", "far", "all") if any(row.column == group for row in rows)]
    for group in groups:
        table.add_column("average" if group == "all" else group, justify="right", no_wrap=True)
    cells = {(row.method, row.column): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    for method in sorted(methods, key=lambda method: -cells[method, "all"].means["auroc"]):
        table.add_row(escape(method), *(_spread(cells[method, group]) for group in groups))
    return table


def _spread(row: SummaryRow) -> str:
    figures = (f"{100 * row.means[m]:.2f} ± {100 * row.stds[m]:.2f}" for m in ("auroc", "fpr95_ood_positive"))
    return " / ".join(figures)

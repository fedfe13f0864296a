"""Results as a table in the terminal."""

from rich.console import Console
from rich.table import Table

from ..evaluate.results import Results
from ..evaluate.rows import Average, Row

LEGEND = (
    "AUROC / FPR95 in percent. FPR95 counts OOD as positive: the share of known inputs that raise an alarm "
    "when 95 % of the unknown ones do."
)
CELL, FIRST, ALPHA = 16, 14, 9  # columns of text that "100.00 / 100.00", a method's name and an alpha take


def print_results(results: Results) -> None:
    """Print one line per method, best average AUROC first, and what the tuned ones chose.

    A narrow terminal gets the averages only, which a line below the table says; a pipe has no width to respect.
    """
    console = Console()
    if not console.is_terminal:
        console.width = 200
    datasets = [ood["name"] for ood in results.suite["ood"]]
    groups = [over for over in ("near", "far", "all") if any(mean.over == over for mean in results.averages)]
    columns = [*datasets, *groups]
    fits = FIRST + ALPHA + sum(max(CELL, len(column) + 3) for column in columns) <= console.width
    console.print(_table(results, columns if fits else groups))
    if not fits:
        console.print("The terminal is too narrow for every data set; results.csv and the report have them.")
    if any("alpha_" in run.learnt for run in results.methods):
        console.print("* chosen by AutoFold on ID validation data")


def _table(results: Results, columns: list[str]) -> Table:
    cells: dict[tuple[str, str], Row | Average] = {(row.method, row.dataset): row for row in results.rows}
    cells |= {(mean.method, mean.over): mean for mean in results.averages}
    table = Table(title=_title(results), title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else column, justify="right", no_wrap=True)
    table.add_column("alpha", justify="right", no_wrap=True)
    for run in sorted(results.methods, key=lambda run: -cells[run.method, "all"].auroc):
        alpha = run.learnt.get("alpha_", run.hyper.get("alpha"))
        shown = "" if alpha is None else f"{alpha:g}{'*' if 'alpha_' in run.learnt else ''}"
        table.add_row(run.method, *(_figures(cells[run.method, column]) for column in columns), shown)
    return table


def _figures(cell: Row | Average) -> str:
    return f"{100 * cell.auroc:.2f} / {100 * cell.fpr95_ood_positive:.2f}"


def _title(results: Results) -> str:
    suite = results.suite
    return f"{suite['name']}: {suite['about']} ID accuracy {100 * suite['accuracy']:.2f} % on {suite['n_test']} images."

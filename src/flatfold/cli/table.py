"""Results as a table in the terminal."""

from rich.console import Console
from rich.table import Table

from ..evaluate.results import Results
from ..evaluate.rows import Average, Row

LEGEND = (
    "AUROC / FPR95 in percent. FPR95 counts OOD as positive: the share of known inputs that raise an alarm "
    "when 95 % of the unknown ones do."
)


def print_results(results: Results) -> None:
    """Print one line per method, best average AUROC first, and what the tuned ones chose."""
    cells = {(row.method, row.dataset): row for row in results.rows} | {
        (mean.method, mean.over): mean for mean in results.averages
    }
    datasets = [ood["name"] for ood in results.suite["ood"]]
    columns = [*datasets, *(over for over in ("near", "far", "all") if any(key[1] == over for key in cells))]
    table = Table(title=_title(results), title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method")
    for column in columns:
        table.add_column({"all": "average"}.get(column, column), justify="right", no_wrap=True)
    table.add_column("alpha", justify="right")
    ranked = sorted(results.methods, key=lambda run: -cells[run.method, "all"].auroc)
    for run in ranked:
        alpha = run.learnt.get("alpha_", run.hyper.get("alpha"))
        figures = [_figures(cells[run.method, column]) for column in columns]
        table.add_row(
            run.method, *figures, "" if alpha is None else f"{alpha:g}{'*' if 'alpha_' in run.learnt else ''}"
        )
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width to respect
    console.print(table)
    if any("alpha_" in run.learnt for run in results.methods):
        console.print("* chosen by AutoFold on ID validation data")


def _figures(cell: Row | Average) -> str:
    return f"{100 * cell.auroc:.2f} / {100 * cell.fpr95_ood_positive:.2f}"


def _title(results: Results) -> str:
    suite = results.suite
    return f"{suite['name']}: {suite['about']} ID accuracy {100 * suite['accuracy']:.2f} % on {suite['n_test']} images."

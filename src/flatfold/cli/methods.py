"""``flatfold methods``: what can be put after ``--methods``."""


def methods() -> None:
    """List every method with its hyper-parameters and what it learns from."""
    from rich.console import Console
    from rich.table import Table

    from .. import detectors

    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it scores", "learns from", "hyper-parameters"):
        table.add_column(column)
    for name in detectors.methods():
        method = detectors.get_method(name)
        hyper = ", ".join(f"{key}={_short(value)}" for key, value in detectors.hyperparameters(name).items())
        table.add_row(name, method.summary, method.fits_on, hyper)
    Console().print(table)


def _short(value: object) -> str:
    """Return a default in a few characters; a grid by its ends."""
    return f"{value[0]}..{value[-1]}" if isinstance(value, tuple) and value else str(value)

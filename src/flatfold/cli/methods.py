"""``flatfold methods``: what can be put after ``--methods``."""

from .console import open_console
from .own import With, load_own


def methods(own: With = None) -> None:
    """List every method with its hyper-parameters and what it learns from."""
    from rich.table import Table

    from .. import detectors

    load_own(own)
    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it scores", "learns from", "hyper-parameters"):
        table.add_column(column)
    for name in detectors.methods():
        method = detectors.get_method(name)
        hyper = ", ".join(f"{key}={_short(value)}" for key, value in detectors.hyperparameters(name).items())
        table.add_row(name, method.summary, _teachers(method.fits_on, method.sees), hyper)
    console = open_console()
    console.print(table)
    console.print(
        "\nalpha=... on any other method that sees features puts partial normalisation, h / |h|^alpha, in front of it."
    )
    console.print("From Python: flatfold.create(name, alpha=..., preset='authors').")
    tunable = {name: detectors.get_method(name) for name in detectors.methods() if detectors.get_method(name).grid}
    features = ", ".join(name for name, method in tunable.items() if method.sees == "features")
    inputs = " and ".join(name for name, method in tunable.items() if method.sees != "features")
    console.print(f"In a benchmark name@id tunes a method on known data, name@ood on unknown data: {features}.")
    console.print(f"{inputs} can be tuned on unknown data only.")


def _teachers(fits_on: str, sees: str) -> str:
    """Return what a method learns from, in words."""
    if sees != "features":
        return "ID training images" if fits_on == "train" else "nothing, it runs the network"
    return {"nothing": "the head alone", "val": "ID validation data", "train": "ID training data"}[fits_on]


def _short(value: object) -> str:
    """Return a default in a few characters; a grid by its ends."""
    return f"{value[0]}..{value[-1]}" if isinstance(value, tuple) and value else str(value)

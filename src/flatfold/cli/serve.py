"""``flatfold serve``: a guard that answers over HTTP."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
    Crop,
    Interpolation,
    Mean,
    Mode,
    Pretrained,
    Resize,
    Std,
    Weights,
    With,
    load_own,
    open_model,
    prepared_by,
)

if TYPE_CHECKING:
    from ..scoring.calibrated import CalibratedDetector
    from ..scoring.guard import Guard


TOKEN = "FLATFOLD_TOKEN"

"""Where a token is looked for: on a command line everybody on the machine could read it."""


def serve(
    guard: Annotated[Path, typer.Argument(help="File that `guard.save` wrote.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The network, as for `flatfold export`: package.module:function or library/name. Without it, features "
            "alone are judged.",
            show_default=False,
        ),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = None,
    device: Annotated[str, typer.Option(help="Where the network runs: cpu, cuda ...")] = "cpu",
    fpr: Annotated[
        float | None, typer.Option(help="Share of known inputs that may raise an alarm. Default: that of the guard.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="File with the name of a class in each line, in the order of the outputs.")
    ] = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    mode: Mode = None,
    interpolation: Interpolation = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with a token that requests must carry. Or set the variable {TOKEN}."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name that the service goes by, without port; repeatable.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Another web page that may use it: https://example.org; repeatable.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Most inputs that go through the network together.")] = 64,
    max_waiting: Annotated[int, typer.Option(min=1, help="Most inputs that wait for it.")] = 1024,
    max_body: Annotated[float, typer.Option(help="Most megabytes of a request.")] = 16,
    max_images: Annotated[int, typer.Option(min=1, help="Most images of a request.")] = 64,
    max_pixels: Annotated[int, typer.Option(min=1, help="Most pixels of an image.")] = 50_000_000,
    timeout: Annotated[float, typer.Option(help="Seconds for a request to arrive, and then to be answered.")] = 30,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print a line for every request.")] = False,
    own: With = None,
) -> None:
    """Answer over HTTP which inputs a classifier does not know, with a page to try it and watch its stream.

    POST an image, a form with images, or features to /score. GET / is the page, /stream what was seen so far, /metrics
    the same for Prometheus, /healthz whether it is up. It ends with SIGTERM or Ctrl+C, after the requests that run.

    Example: flatfold serve guard.safetensors --model nets:resnet20 --weights resnet20.pt

    Example: curl --data-binary @cat.png -H "Content-Type: image/png" "http://127.0.0.1:8000/score?explain=true"
    """
    options = {"resize": resize, "crop": crop, "mean": mean, "std": std, "mode": mode, "interpolation": interpolation}
    _check_model_options(model, {"weights": weights, "pretrained": pretrained, **options})
    _check_installed()
    from ..serve.run import is_loopback

    load_own(own)
    token = _token(token_file)
    settings = {
        "token": token,
        "hosts": _hosts(host, allow_host or []),
        "origins": frozenset(allow_origin or []),
        "names": None if names is None else _lines(names),
        "max_body": _bytes(max_body),
        "max_batch": max_batch,
        "max_waiting": max_waiting,
        "max_images": max_images,
        "max_pixels": max_pixels,
        "timeout": timeout,
    }
    if not is_loopback(host) and token is None:
        typer.echo(f"note: everybody who reaches {host} can use this service: there is no --token-file", err=True)
    if model is None:
        _run(_judge(guard, fpr, device), settings, host, port, access_log)
    else:
        network = open_model(model, weights, pretrained)
        _run(_guard(guard, network, fpr, device, options), settings, host, port, access_log)


def _run(served: Guard | CalibratedDetector, settings: dict[str, Any], host: str, port: int, access_log: bool) -> None:
    """Say what is served, and serve it."""
    from ..serve.app import create_app
    from ..serve.run import address_of, bind, run
    from ..serve.settings import Settings

    app = create_app(served, Settings(**settings))
    with bind(host, port) as bound:
        facts = app.state.service.scorer.facts()
        what = f"{facts['method']} at a false-alarm rate of {facts['fpr']:g}"
        takes = "features" if app.state.service.scorer.transform is None else "images and features"
        asks = "without a token" if settings["token"] is None else "with a token"
        typer.echo(f"{what}, for {takes}, at {address_of(bound)}, {asks}")
        ended = run(app, bound, access_log)
    if not ended:
        typer.echo("note: the network, or the decoding of an image, did not come to an end and was cut off", err=True)
        os._exit(1)  # any other way out waits for it


def _guard(path: Path, network: Any, fpr: float | None, device: str, options: dict[str, int | str | None]) -> Guard:
    from ..models.eval_mode import usable_device
    from ..scoring.guard import Guard

    loaded = Guard.load(path, network)
    loaded.transform = prepared_by(loaded.transform, options, path)
    loaded.model.to(usable_device(device))
    loaded.calibrated.to(usable_device(device))
    return loaded if fpr is None else loaded.at(fpr)


def _judge(path: Path, fpr: float | None, device: str) -> CalibratedDetector:
    from ..models.eval_mode import usable_device
    from ..scoring.calibrated import CalibratedDetector

    loaded = CalibratedDetector.load(path)
    return (loaded if fpr is None else loaded.at(fpr)).to(usable_device(device))


def _check_model_options(model: str | None, options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if model is None and given:
        raise ValueError(
            f"--{given[0]} is about images, which need a network, but there is no --model. Add it, or leave "
            f"--{given[0]} out to judge features alone."
        )


def _check_installed() -> None:
    from importlib.util import find_spec

    for name in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"a service needs {name}, which is not installed. Install flatfold[serve].")


def _hosts(host: str, more: list[str]) -> frozenset[str] | None:
    """Return the names that a service goes by; None for any, where others on the network choose how they call it."""
    from ..serve.run import is_loopback
    from ..serve.settings import LOOPBACK

    if not is_loopback(host) and not more:
        return None
    address = host.lower().partition("%")[0]  # a zone is of use on this machine alone
    return LOOPBACK | {f"[{address}]" if ":" in address else address, *(name.lower() for name in more)}


def _bytes(megabytes: float) -> int:
    if not 1e-6 <= megabytes < 1e9:
        raise ValueError(f"--max-body is a number of megabytes above 0, got {megabytes:g}. 16 is customary.")
    return round(megabytes * 10**6)


def _token(file: Path | None) -> str | None:
    text = os.environ.get(TOKEN) if file is None else file.read_text(encoding="utf-8")
    if file is not None and os.name == "posix" and file.stat().st_mode & stat.S_IROTH:
        typer.echo(f"note: everybody on this machine can read {file}. Try: chmod 600 {file}", err=True)
    return None if text is None else text.rstrip("\r\n")


def _lines(file: Path) -> tuple[str, ...]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    if not all(lines):
        raise ValueError(f"{file} must have the name of a class in each line, but line {lines.index('') + 1} is empty.")
    return tuple(lines)

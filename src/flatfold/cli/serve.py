"""``flatfold serve``: serve a guard over HTTP."""

from __future__ import annotations

import importlib.util
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from .options import (
    NETWORK,
    AnySize,
    Device,
    ModelOptions,
    Pretrained,
    Rate,
    RuntimeOption,
    TextOptions,
    Tokenizer,
    TransformOptions,
    Weights,
    With,
    check_no_images,
    load_plugins,
    use_free_cores,
)
from .output import note, print_json, say

TOKEN = "FLATFOLD_TOKEN"  # an environment variable: command lines are visible to all users of the machine


def serve(
    guard: Annotated[Path, Argument(help="File written by `guard.save`.")],
    model: Annotated[str | None, Option(help=f"{NETWORK} Default: none, to score features only.")] = None,
    weights: Weights = None,
    pretrained: Pretrained = None,
    device: Device = "cpu",
    runtime: RuntimeOption = "auto",
    fpr: Rate = None,
    names: Annotated[
        Path | None, Option(help="File with one class name per line, in the order of the outputs.")
    ] = None,
    *,
    options: TransformOptions,
    tokenizer: Tokenizer = None,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 for any.")] = 8000,
    token_file: Annotated[
        Path | None, Option(help=f"File with the token that requests must send. Or set the variable {TOKEN}.")
    ] = None,
    no_token: Annotated[bool, Option("--no-token", help="Allow public addresses without a token.")] = False,
    allow_host: Annotated[
        list[str] | None, Option(metavar="NAME", help="Another host name of the service, without port; repeatable.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        Option(metavar="ORIGIN", help="Allowed origin of web pages, such as https://example.org; repeatable."),
    ] = None,
    max_batch: Annotated[int, Option(min=1, help="Largest number of inputs in one forward pass.")] = 64,
    max_waiting: Annotated[int, Option(min=1, help="Largest number of inputs queued for the model.")] = 1024,
    max_body: Annotated[float, Option(min=0.001, max=100_000, help="Largest request body in megabytes.")] = 16,
    max_images: Annotated[int, Option(min=1, help="Largest number of images in a request.")] = 64,
    max_texts: Annotated[int, Option(min=1, help="Largest number of texts in a request.")] = 256,
    max_characters: Annotated[int, Option(min=1, help="Largest number of characters per text.")] = 100_000,
    max_pixels: Annotated[int, Option(min=1, help="Largest number of pixels per image.")] = 50_000_000,
    allow_sizes: AnySize = False,
    timeout: Annotated[float, Option(help="Timeout in seconds for receiving a request, and for answering it.")] = 30,
    docs: Annotated[
        bool, Option("--docs/--no-docs", help="Serve the API documentation at /docs and /openapi.json.")
    ] = True,
    access_log: Annotated[bool, Option("--access-log", help="Print one line per request.")] = False,
    own: With = None,
) -> None:
    """Score images, texts and features over HTTP.

    POST an image, a form with images, texts as JSON, or features to /v1/score. GET / returns a page to test the service
    and monitor the scores, /v1/stream the counts so far, /metrics the same for Prometheus, /healthz the health of the
    service, /docs the API documentation. SIGTERM or Ctrl+C stop it after the running requests.

    Example: flatfold serve guard.safetensors --model nets:resnet20 --weights resnet20.pt

    Example: curl --data-binary @cat.png "http://127.0.0.1:8000/v1/score?explain=true"
    """
    image_options = {"weights": weights, "pretrained": pretrained, "tokenizer": tokenizer, **asdict(options)}
    given = [name for name, value in image_options.items() if value is not None]
    if model is None and given:
        raise ValueError(
            f"--{given[0]} applies to images and texts, which need a network. Add --model, or remove --{given[0]}."
        )
    for package in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"flatfold serve needs {package}, which is not installed. Install flatfold[serve]."
            )
    from ..network.calls import usable_device
    from ..scoring.calibrated import CalibratedDetector
    from ..scoring.guard import Guard
    from ..scoring.shards import onnx_cache
    from ..serve.app import create_app
    from ..serve.server import address_of, bind, is_loopback, run
    from ..serve.settings import Settings

    load_plugins(own)
    token = _read_token(token_file)
    settings = Settings(
        guard=guard.name,
        model=", ".join(filter(None, (model, pretrained, None if weights is None else weights.name))),
        token=token,
        hosts=_hosts(host, allow_host or []),
        origins=frozenset(allow_origin or []),
        names=None if names is None else _read_names(names),
        max_body=round(max_body * 10**6),
        max_batch=max_batch,
        max_waiting=max_waiting,
        max_images=max_images,
        max_texts=max_texts,
        max_characters=max_characters,
        max_pixels=max_pixels,
        allow_sizes=allow_sizes,
        timeout=timeout,
        docs=docs,
    )
    if no_token and token is not None:
        message = f"a token is set by --token-file or the variable {TOKEN}. Leave one of them out."
        raise typer.BadParameter(message, param_hint="--no-token")
    if not is_loopback(host) and token is None:
        exposed = f"anyone who can reach {host} can use the service"
        if not no_token:
            advice = f"Set --token-file or the variable {TOKEN}, or pass --no-token to allow this"
            raise typer.BadParameter(f"{exposed}: it has no token. {advice}.", param_hint="--host")
        note(f"{exposed}: it has no token")
    processor = usable_device(device)
    served: Guard | CalibratedDetector
    if model is None:
        served = CalibratedDetector.load(guard).to(processor)
    else:
        network = ModelOptions(model, weights, pretrained)
        served = Guard.load(guard, network.open().to(processor))
        tokeniser = TextOptions(tokenizer).stored(network, served.loading)
        if tokeniser is None:
            served.transform = options.transform(guard, served.transform)
        else:
            check_no_images(options)
            served.loading = replace(served.loading, collate=tokeniser)
            runtime = "torch" if runtime == "auto" else runtime  # a graph is for texts of one length
        served.calibrated.to(processor)
        use_free_cores()
        served.use_runtime(runtime, onnx_cache=onnx_cache(guard))
        served.warm_up()
        if tokeniser is None and served.network.sizes is None and not allow_sizes:
            sizes = f"{guard} does not store the sizes of its images: all sizes up to --max-pixels are accepted"
            note(f"{sizes}. Add --crop, or fit the guard again")
    app = create_app(served if fpr is None else served.at(fpr), settings)
    scorer = app.state.service.scorer
    with bind(host, port) as bound:
        kinds = {"images": scorer.transform, "texts": scorer.tokeniser}
        inputs = " and ".join([*(kind for kind, known in kinds.items() if known is not None), "features"])
        access = "without a token" if token is None else "with a token"
        rate = scorer.calibrated.calibration.fpr
        by = f"; runtime: {served.network.runtime}" if isinstance(served, Guard) else ""
        place = address_of(bound)
        served_by = "" if model is None else f" in front of {settings.model}"
        say(f"{place} serves {scorer.method}{served_by} at a false-alarm rate of {rate:g}, for {inputs}, {access}{by}")
        print_json(address=place, method=scorer.method, fpr=rate, inputs=inputs, token=token is not None)
        ended = run(app, bound, access_log)
    if not ended:
        note("the network or the decoding of an image did not finish and was stopped")
        os._exit(1)  # any other exit would wait for it


def _hosts(host: str, more: list[str]) -> frozenset[str] | None:
    """Return the host names of a service; None accepts any name, for public addresses."""
    from ..serve.server import is_loopback
    from ..serve.settings import LOOPBACK

    if not is_loopback(host) and not more:
        return None
    address = host.lower().partition("%")[0]  # without the zone, which is local to this machine
    return LOOPBACK | {f"[{address}]" if ":" in address else address, *(name.lower() for name in more)}


def _read_token(file: Path | None) -> str | None:
    text = os.environ.get(TOKEN) if file is None else file.read_text(encoding="utf-8")
    if file is not None and os.name == "posix" and file.stat().st_mode & stat.S_IROTH:
        note(f"all users of this machine can read {file}. Run: chmod 600 {file}")
    return None if text is None else text.rstrip("\r\n")


def _read_names(file: Path) -> tuple[str, ...]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    if not all(lines):
        raise ValueError(f"{file} must have one class name per line, but line {lines.index('') + 1} is empty.")
    return tuple(lines)

"""Count the modules of flatfold that common tasks pass through: ``python -m benchmarks.walk [TASK ...]``.

Only functions that run count, not modules that are merely imported.
"""

import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from PIL import Image

import flatfold as ff
from flatfold.cli import main

PACKAGE = str(Path(ff.__file__).parent) + "/"
LIMITS = {"guard(x)": 15, "Guard.fit": 22, "request": 20, "score": 30, "bench": 45, "reproduce": 90}
NETWORK = """from torch import nn
def net(): return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))
"""
SMALL = "--limit 60 --bootstrap 0 --methods msp,fold"


Task = Callable[[Callable[[], None]], object]  # takes a function that forgets the modules so far


def walk(task: Task) -> list[str]:
    """Return the modules whose functions a task calls, in the order of their first call."""
    modules: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file, is_function = code.co_filename, code.co_flags & CO_OPTIMIZED  # neither a module nor a class body
        if event == "call" and is_function and file.startswith(PACKAGE) and file.endswith(".py"):
            modules.setdefault(file.removeprefix(PACKAGE).removesuffix(".py"))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        task(modules.clear)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(modules)


def command(line: str) -> None:
    """Run a command line in this process."""
    sys.argv = ["flatfold", *line.split()]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        try:
            main()
        except SystemExit as left:
            if left.code:
                raise RuntimeError(f"{line}\n{errors.getvalue()}") from None


def request(guard: ff.Guard, image: bytes, forget: Callable[[], None]) -> None:
    """Ask a service for the score of one image."""
    from fastapi.testclient import TestClient

    from flatfold.serve.app import create_app

    with TestClient(create_app(guard), base_url="http://127.0.0.1") as client:
        forget()  # the start of the service
        answer = client.post("/score?explain=true", content=image, headers={"Content-Type": "image/png"})
        answer.raise_for_status()


def tasks() -> dict[str, Task]:
    """Write a network, its guard and some images into the current folder, and return what is measured with them."""
    Path("nets.py").write_text(NETWORK, encoding="utf-8")
    scope: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(NETWORK, scope)
    torch.manual_seed(0)
    model = scope["net"]().eval()
    torch.save(model.state_dict(), "weights.pt")
    for row, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (90, 4, 4, 3), np.uint8)):
        path = Path("images", str(row % 3), f"{row}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    images = ff.FolderImages("images", ff.Transform())
    guard = ff.Guard.fit(model, images)
    guard.save("guard.safetensors")
    batch = next(iter(images))[0]
    network = "--model nets:net --weights weights.pt"
    return {
        "guard(x)": lambda _: guard(batch),
        "Guard.fit": lambda _: ff.Guard.fit(model, images),
        "request": lambda forget: request(guard, Path("images/0/0.png").read_bytes(), forget),
        "score": lambda _: command(f"score images --guard guard.safetensors {network} --out scores.csv"),
        "bench": lambda _: command(f"bench digits {SMALL}"),
        "reproduce": lambda _: command(
            f"reproduce digits --networks mlp --samples 4 --rounds 1 --no-report {SMALL},ebo,autofold"
        ),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        every = tasks()
        chosen = sys.argv[1:] or list(every)
        print("| task | modules | at most |\n|---|---|---|")
        for name in chosen:
            print(f"| {name} | {len(walk(every[name]))} | {LIMITS[name]} |", flush=True)

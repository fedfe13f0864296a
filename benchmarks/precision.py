"""Mixed precision (bfloat16) against float32 on real networks: speed, AUROC, and the false-alarm rate of guards."""

import os
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

import flatfold as ff
from flatfold.data.images import ArrayImages
from flatfold.data.sources import take_subset
from flatfold.network.model_loading import load_weights, make_model

from .ratio import report, time_ratio

EXAMPLES = Path(__file__).parents[1] / "examples"
TRANSFORM = ff.Transform(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
METHODS, FPR = ("fourfold", "ebo", "msp", "autofold"), 0.05
OOD = ("svhn_test_4k", "textures_dtd10_32")


def run() -> list[bool]:
    """Fit guards in both precisions on 1,000 images and score 3,000 other ID images and two OOD sets with each."""
    if "FLATFOLD_DATA" not in os.environ:
        print("skip  mixed precision: FLATFOLD_DATA is not set, so there are no real images")
        return []
    passed = []
    for name in ("resnet20", "resnet56"):
        model = make_model(f"cifar_resnet:{name}", EXAMPLES, seed=0)
        load_weights(model, Path(os.environ["FLATFOLD_DATA"]) / f"cifar10_{name}.safetensors")
        model.eval()
        val, test = _images("cifar10_test", slice(0, 1000)), _images("cifar10_test", slice(1000, 4000))
        sets = {"id": test} | {ood: take_subset(_images(ood, slice(None)), 1000) for ood in OOD}
        types = {"float32": None, "bfloat16": torch.bfloat16}
        guards = {
            (kind, method): ff.Guard.fit(
                model, val, method=method, fpr=FPR, seed=1, execution=ff.Execution(dtype=dtype)
            )
            for kind, dtype in types.items()
            for method in METHODS
        }
        passes = {
            (kind, dataset): [guards[kind, "msp"].network(batch) for batch in source]
            for kind in types
            for dataset, source in sets.items()
        }
        for method in METHODS:
            scores = {
                (fitted, scored, dataset): _scores(guards[fitted, method], passes[scored, dataset])
                for fitted, scored in (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16"))
                for dataset in sets
            }
            aurocs, rates = {}, {}
            for fitted, scored in {key[:2]: None for key in scores}:
                known = scores[fitted, scored, "id"]
                aurocs[fitted, scored] = 100 * fmean(ff.auroc(known, scores[fitted, scored, ood]) for ood in OOD)
                rates[fitted, scored] = 100 * float(
                    (known > guards[fitted, method].calibration.threshold[0]).double().mean()
                )
            both = {key: f"{aurocs[key]:.2f} / {rates[key]:.1f}" for key in aurocs}
            print(f"      {name}, {method}: AUROC / false alarms in percent, fitted and scored in {both}")
            if method != "autofold":  # which may choose another exponent
                change = abs(aurocs["bfloat16", "bfloat16"] - aurocs["float32", "float32"])
                what = f"{name}, {method}: change of AUROC in bfloat16"
                passed.append(report(what, change, "points", 0.1, at_least=False))
        mixed, plain, x = guards["bfloat16", "msp"], guards["float32", "msp"], torch.randn(64, 3, 32, 32)
        ratio = time_ratio(partial(mixed, x), partial(plain, x))
        threads = torch.get_num_threads()
        print(f"      {name}: bfloat16 is {ratio:.2f} times as fast as float32, batch of 64, {threads} threads")
    return passed


def _scores(guard: ff.Guard, passes: list[object]) -> torch.Tensor:
    return torch.cat([guard.calibrated.decide(*result).score for result in passes])  # type: ignore[misc]


def _images(name: str, rows: slice) -> ArrayImages:
    with np.load(Path(os.environ["FLATFOLD_DATA"]) / f"{name}.npz") as file:
        return ArrayImages(np.ascontiguousarray(file["x"][rows]), file["y"][rows].astype(np.int64), TRANSFORM)

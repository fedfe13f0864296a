"""The numbers of a small `bench digits` and of a small `curvature digits`."""

import json

from tests.golden.pins import check

METRICS = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in")
# The features come from float32 convolutions: on another machine two images in 150 may change places.
PLACES = {"rtol": 0, "atol": 0.0135}


def test_results(digits):
    results = json.loads((digits / "results.json").read_text())
    found = {
        "accuracy": results["suite"]["accuracy"],
        "images": {key: value for key, value in results["suite"].items() if key.startswith("n_")},
        "refused": sorted(results["refused"]),
        "alphas": {
            each["method"]: each["learnt"]["alpha_"] for each in results["methods"] if "alpha_" in each["learnt"]
        },
        "rows": {f"{row['method']} {row['dataset']}": {name: row[name] for name in METRICS} for row in results["rows"]},
        "averages": {f"{row['method']} {row['over']}": row["auroc"] for row in results["averages"]},
        "intervals": {
            f"{row['method']} {row['dataset']}": row["certainty"]["intervals"]["auroc"] for row in results["rows"]
        },
    }
    check("digits_results", found, **PLACES)


def test_the_mean_auroc_is_pinned_more_tightly(digits):
    """A systematic change of a thousandth shows here, one swap of two images does not."""
    rows = json.loads((digits / "results.json").read_text())["averages"]
    check("digits_averages", {row["method"]: row["auroc"] for row in rows if row["over"] == "all"}, rtol=0, atol=5e-4)


def test_study(digits):
    study = json.loads((digits / "curvature.json").read_text())
    exact, estimated = {}, {}
    for row in study["statistics"]:
        kind = exact if row["stderr"] is None else estimated
        kind[f"{row['space']} {row['name']} {row['dataset']}"] = row["value"]
    check("digits_curvature", exact, rtol=2e-3)
    check("digits_curvature_estimated", estimated, rtol=2e-2)
    aurocs = {f"{row['space']} {row['dataset']}": row["auroc"] for row in study["detections"]}
    check("digits_curvature_aurocs", aurocs, rtol=0, atol=0.032)  # two of 64 pairs of images

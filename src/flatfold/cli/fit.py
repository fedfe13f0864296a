"""``flatfold fit`` and ``flatfold export``: fit a guard on ID images, and export guard and model as one graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from ..display.numbers import size
from .options import (
    DEFAULT_METHOD,
    FPR,
    IMAGES,
    METHOD,
    TEXTS,
    ExecutionOptions,
    ImageOptions,
    LoadingOptions,
    ModelOptions,
    PerClass,
    TextOptions,
    TransformOptions,
    With,
    check_no_images,
    check_out,
    load_plugins,
    make_detector,
    share_option,
)
from .output import captured_warnings, count, print_json, say

if TYPE_CHECKING:
    from ..data.sources import NamedSource
    from ..scoring.export import Layout

MANY = 50_000  # images to score for which preparing a graph of the network pays off


def fit(
    images: Annotated[Path, Argument(help=f"ID images that the model was not trained on: {IMAGES}; or {TEXTS}.")],
    model: ModelOptions,
    out: Annotated[Path, Option(help="File to write, such as guard.safetensors.")],
    method: Annotated[str, Option(help=f"Detection method: a {METHOD}.")] = DEFAULT_METHOD,
    fpr: Annotated[float, share_option("Largest false-alarm rate on ID inputs.")] = FPR,
    confidence: Annotated[
        float | None,
        share_option(
            "Probability that this guard's false-alarm rate is at most --fpr, such as 0.95. Default: the rate holds on "
            "average over guards."
        ),
    ] = None,
    per_class: PerClass = False,
    calibration: Annotated[Path | None, Option(help="Images for calibration. Default: half of IMAGES.")] = None,
    *,
    transform: TransformOptions,
    head: Annotated[
        str | None,
        Option(help="Name of the last linear layer; several, as in a,b, if they are averaged. Default: found."),
    ] = None,
    execution: ExecutionOptions,
    loading: LoadingOptions,
    limit: Annotated[int | None, Option(min=2, help="Largest number of images, spread over all of them.")] = None,
    seed: Annotated[int, Option(min=0, help="Random seed for the calibration half and for --limit.")] = 0,
    options: ImageOptions,
    texts: TextOptions,
    label_column: Annotated[
        str | None, Option(help="Parquet column or .npz array that holds the labels. Default: label, or y.")
    ] = None,
    labels: Annotated[bool, Option("--labels/--no-labels", help="Read labels, or fit without.")] = True,
    masks: Annotated[
        Path | None,
        Option(help="Folder of masks, for a segmentation network: the class of every pixel, as the PNG of each image."),
    ] = None,
    calibration_masks: Annotated[Path | None, Option(help="Folder of the masks of --calibration.")] = None,
    ignore_index: Annotated[
        list[int] | None, Option(help="Class in masks that does not count, besides 255; repeat for several.")
    ] = None,
    own: With = None,
) -> None:
    """Fit a guard for a model on ID images or texts.

    A guard is a detector with a threshold that at most a fraction --fpr of ID inputs exceeds, on average over draws of
    the calibration images; with --confidence 0.95, this holds for this guard with a probability of 95 %.

    IMAGES must resemble future ID inputs, belong to the classes of the model, and must not be its training images, on
    which it is overconfident. Labels come from class folders, the numbers of a list (path, space, class), a column or
    an array; some methods need none. The transform options must match the model's training; without them, --pretrained
    uses the transform published with the weights. It is stored in the file. `flatfold score`, `export` and `serve` use
    the guard.

    For a segmentation network, --masks DIR has the mask of IMAGES/a/1.jpg as DIR/a/1.png: a grey PNG or one with a
    palette, whose values are classes, of the size of the image. It is resized and cropped like the image. At most a
    fraction --fpr of the pixels of an ID image then raises an alarm, on average over images. Images of several sizes
    need --batch-size 1.

    With --model transformers/FOLDER and a tokeniser in the folder, or with --tokenizer, IMAGES are texts. Labels are
    class indices, or names, which are numbered as in the model's config, else in sorted order. Rows without a text
    count as unreadable.

    Exit codes: 0 done; 1 invalid input; 2 invalid usage; 130 interrupted.

    Example: flatfold fit val/ --model nets:resnet20 --weights resnet20.pt --mean 0.485,0.456,0.406 --std
    0.229,0.224,0.225 --out guard.safetensors

    Example: flatfold fit val.parquet --model torchvision/resnet50 --pretrained DEFAULT --method knn:k=10 --fpr 0.01
    --out guard.safetensors

    Example: flatfold fit frames/ --masks classes/ --model nets:segmentation --weights net.pt --mean 0.485,0.456,0.406
    --std 0.229,0.224,0.225 --out guard.safetensors

    Example: flatfold fit reviews.csv --model transformers/bert --out guard.safetensors
    """
    load_plugins(own)
    if (calibration is not None and masks is not None) != (calibration_masks is not None):
        problem = "it belongs to --calibration and --masks. Pass all three, or leave it out."
        problem = problem if calibration_masks is not None else "--calibration needs masks too. Pass their folder."
        raise BadParameter(problem, param_hint="--calibration-masks")
    detector = make_detector(method, images, calibration, "IMAGES")
    check_out(out, images, calibration, model.weights)
    from ..data.images import LISTS
    from ..data.sources import take_subset
    from ..detectors import get_method, parse_method
    from ..scoring.guard import Guard
    from ..scoring.shards import onnx_cache

    running = execution.execution(loading.workers, execution.dtype, head)
    network = model.open()
    tokeniser = texts.tokeniser(model)
    labelled = labels and (label_column or True)
    published, held_out = None, None
    source: NamedSource
    if tokeniser is not None:
        check_no_images(transform, options, masks)
        classes = getattr(getattr(network, "config", None), "label2id", None)
        source = take_subset(texts.open(images, tokeniser, options.batch_size, labelled, classes), limit, seed)
        if calibration is not None:
            held_out = take_subset(texts.open(calibration, tokeniser, options.batch_size), limit, seed)
    else:
        published = None if transform.given else model.published_transform(network)
        prepared = transform.transform(published=published)
        source = take_subset(options.open(images, prepared, labelled, masks), limit, seed)
        if calibration is not None:
            places = options if calibration.suffix.lower() in LISTS else replace(options, root=None)
            held_out = take_subset(places.open(calibration, prepared, masks=calibration_masks), limit, seed)
    name = parse_method(method)[0]
    if source.labels is None and not source.masked and get_method(name).needs_labels:
        advice = "Sort the images into one folder per class, in the order of the model's outputs, pass --masks for a "
        advice += "segmentation network"
        advice = advice if tokeniser is None else "Give them in a column of a .csv, .jsonl or .parquet file"
        raise ValueError(
            f"{name} needs labels, but {images} is read without labels. {advice}, or choose a --method that needs no "
            "labels, such as fold."
        )
    with captured_warnings():
        guard = Guard.fit(
            network,
            source,
            method=detector,
            fpr=fpr,
            calibration=held_out,
            per_class=per_class,
            confidence=confidence,
            seed=seed,
            ignore_index=ignore_index or None,
            loading=loading.loading(),
            execution=replace(running, onnx_cache=onnx_cache(out)),
        )
    guard.save(out)
    result, calibrated = guard.fit_result, guard.calibration
    assert result is not None
    accuracy = result.accuracy
    right = "no labels" if accuracy is None else f"accuracy of the model {100 * accuracy:.1f} %"
    buffers = ((name.rpartition(".")[2], values) for name, values in guard.detector.named_buffers())
    chosen = {  # scalars learnt by the method, such as AutoFold's alpha
        name.removesuffix("_"): values.item() for name, values in buffers if name.endswith("_") and not values.ndim
    }
    low, high = (float(edge) for edge in calibrated.threshold.aminmax())
    threshold = f"{low:.4g} to {high:.4g}, by predicted class" if per_class else f"{low:.4g}"
    noun = source.noun
    say(f"{noun + 's':<12} {result.samples:,} of {images}; {right}")
    if result.copies:
        say(f"copies       {count(result.copies, noun)} with duplicate features, up to rounding")
    if published is not None:
        steps = ", ".join(f"{name} {value}" for name, value in published.as_dict().items() if value is not None)
        say(f"transform    of the published weights: {steps}")
    say(f"runtime      {result.runtime}")
    dense = guard.network.dense
    if running.runtime == "auto" and tokeniser is None and not dense:  # also cache the graph, if it is the fastest
        guard.use_runtime("auto", MANY, onnx_cache(out))
        guard.warm_up()
        say(f"             for many images: {guard.network.runtime}")
    say(f"method       {detector.method_text}{''.join(f', {key} = {value:g}' for key, value in chosen.items())}")
    distinct = f"distinct {noun}" if result.copies else noun
    say(f"calibration  {count(calibrated.samples, distinct)}, {calibration or 'a random half of them'}")
    sure = f"on average over draws of the calibration {noun}s"
    if confidence is not None:
        sure = f"with a probability of {100 * confidence:g} % for this guard"
    what = f"ID {noun}s raise an alarm"
    if dense:
        what, sure = f"the positions of an ID {noun} raise an alarm", f"on average over {noun}s and {sure[11:]}"
    say(f"rate         at most {100 * guard.fpr:g} % of {what}, {sure}")
    say(f"threshold    alarm if the score is above {threshold}")
    say(f"guard        -> {out}, {size(out.stat().st_size)}")
    print_json(
        guard=out,
        bytes=out.stat().st_size,
        **{f"{noun}s": result.samples},
        copies=result.copies,
        accuracy=accuracy,
        method=detector.method_text,
        chosen=chosen,
        **{f"calibration_{noun}s": calibrated.samples},
        fpr=guard.fpr,
        confidence=confidence,
        thresholds=calibrated.threshold.tolist(),
        runtime=guard.network.runtime,
    )


def export(
    guard: Annotated[Path, Argument(help="Guard file, from `flatfold fit` or Guard.save.")],
    model: ModelOptions,
    images: Annotated[Path, Option(help=f"Images for validating the export: {IMAGES}; or {TEXTS}.")],
    out: Annotated[Path | None, Option(help="File to write, .onnx or .pt2. Default: GUARD.onnx.")] = None,
    triton: Annotated[
        Path | None,
        Option(help="Write the model, or its next version, to this Triton model repository instead of a file."),
    ] = None,
    name: Annotated[
        str | None, Option(help="Name of the model in --triton. Default: the name of the guard file.")
    ] = None,
    mlflow: Annotated[
        Path | None, Option(help="Write an MLflow model to this new folder instead (needs flatfold[mlflow]).")
    ] = None,
    limit: Annotated[int, Option(min=2, max=1024, help="Largest number of images for validation.")] = 128,
    *,
    transform: TransformOptions,
    texts: TextOptions,
    own: With = None,
) -> None:
    """Export a guard and its model as one graph.

    The graph maps x to logits, score, p_value and is_ood, for any batch size. The file needs neither flatfold nor, as
    .onnx, torch. It is written only if it reproduces the guard's results on real images, in batches of 1, 7 and 64.
    Images are prepared with the transform stored in the guard file; a guard fitted on tensors stores none and needs
    --resize, --crop, --mean, --std, --mode or --interpolation.

    The graph of a model of texts takes tokens padded to one length: --max-length, else that of the tokeniser.

    --triton DIR writes DIR/NAME/config.pbtxt and DIR/NAME/1/model.onnx, for the backend onnxruntime with dynamic
    batching. An existing model gets the next version, which Triton serves by default, and keeps its config.pbtxt;
    if that names other inputs or outputs, nothing is written. --mlflow DIR writes a model for
    mlflow.pyfunc.load_model(DIR). Both folders are created atomically.

    Exit codes: 0 done; 1 invalid input, or different results; 2 invalid usage.

    Example: flatfold export guard.safetensors --model nets:resnet20 --weights resnet20.pt --images photos/
    """
    from ..data.images import open_images
    from ..data.sources import take_subset
    from ..scoring.export import export as export_guard
    from ..scoring.export import find_target
    from ..scoring.guard import Guard

    places: list[tuple[str, Path | None, Layout | None]]
    places = [("--triton", triton, "triton"), ("--mlflow", mlflow, "mlflow"), ("--out", out, None)]
    given = [option for option, place, _ in places if place is not None]
    if len(given) > 1:
        raise BadParameter("these options exclude each other. Pass one of them.", param_hint=", ".join(given))
    if name is not None and triton is None:
        raise BadParameter("only --triton uses a name. Leave it out.", param_hint="--name")
    option, path, layout = next(place for place in places if place[0] in (given or ["--out"]))
    path, name = path or guard.with_suffix(".onnx"), guard.stem if name is None else name
    target = find_target(path, layout, name)
    check_out(target, guard, images, option=option)
    load_plugins(own)
    loaded = Guard.load(guard, model.open())
    tokeniser = replace(texts, max_length=None).stored(model, loaded.loading)
    source: NamedSource
    if tokeniser is not None:
        check_no_images(transform)
        length = texts.max_length or tokeniser.longest
        if length is None:
            message = "the tokeniser does not limit the length of texts, and a graph has one. Pass it."
            raise BadParameter(message, param_hint="--max-length")
        padded = tokeniser.with_options(padding="max_length", max_length=length)
        source = take_subset(texts.open(images, padded, 64), limit)
    else:
        loaded.transform = transform.transform(guard, loaded.transform)
        source = take_subset(open_images(images, loaded.transform, labels=False), limit)
    parity = export_guard(loaded, path, source, layout=layout, name=name)
    sizes = ", ".join(map(str, parity.batch_sizes))
    say(f"{loaded!r} -> {target}, {size(target.stat().st_size)}")
    say(f"validated on {parity.inputs} {source.noun}s of {images} in batches of {sizes}")
    say(f"largest relative error: logits {parity.logits:.1e}, scores {parity.score:.1e}")
    near = f", {parity.undecidable} closer to the threshold than 1e-4" if parity.undecidable else ""
    say(f"same decision for every {source.noun}{near}")
    print_json(file=target, bytes=target.stat().st_size, parity=parity)

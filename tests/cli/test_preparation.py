"""`cli.preparation`: from options to a transform, and never another than the guard was calibrated with."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flatfold.cli.preparation import Crop, Interpolation, Mean, Mode, Resize, Std, prepared_by
from flatfold.models.transform import Transform

GUARD = Path("g.safetensors")
KNOWN = Transform(resize=8, crop=6, mean=(0.1, 0.2, 0.3), std=(1, 2, 3), interpolation="bicubic")
NOTHING = dict.fromkeys(("resize", "crop", "mean", "std", "mode", "interpolation"))
EVERYTHING = {
    "resize": 9,
    "crop": 7,
    "mean": "0.5, 0.4,0.3",
    "std": "0.1,0.2,1e0",
    "mode": "RGB",
    "interpolation": "bicubic",
}


@pytest.mark.parametrize("guard", [GUARD, None])
def test_options_say_how_images_are_prepared_where_nothing_is_known(guard):
    expected = Transform(9, 7, (0.5, 0.4, 0.3), (0.1, 0.2, 1.0), "RGB", "bicubic")
    assert prepared_by(None, EVERYTHING, guard) == expected
    assert prepared_by(None, NOTHING | {"mode": "L", "mean": "0.5"}, guard) == Transform(mode="L", mean=(0.5,))
    assert prepared_by(None, {"crop": 7}, guard) == Transform(crop=7)


@pytest.mark.parametrize("guard", [GUARD, None])
def test_without_options_images_are_prepared_as_is_known(guard):
    assert prepared_by(KNOWN, NOTHING, guard) == KNOWN
    assert prepared_by(KNOWN, {}, guard) == KNOWN


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_guard_that_knows_takes_no_option(name):
    with pytest.raises(
        ValueError,
        match=rf"^g\.safetensors says how images are prepared, as those it was calibrated on: Transform\(.*\)\. "
        rf"Leave out --{name}\.$",
    ):
        prepared_by(KNOWN, NOTHING | {name: EVERYTHING[name]}, GUARD)


@pytest.mark.parametrize(
    ("guard", "who"), [(GUARD, r"g\.safetensors does not say"), (None, "nothing says")], ids=["guard", "fit"]
)
def test_where_nothing_is_known_or_given_a_sentence_says_what_to_give(guard, who):
    with pytest.raises(
        ValueError,
        match=rf"^{who} how images are prepared\. Say it with --resize, --crop, --mean, --std; or with --mode RGB if "
        r"their pixels are only brought to the range from 0 to 1\.$",
    ):
        prepared_by(None, NOTHING, guard)


def test_while_fitting_options_replace_parts_of_what_is_known():
    options = NOTHING | {"crop": 4, "mean": "0,0,0"}
    expected = Transform(resize=8, crop=4, mean=(0, 0, 0), std=(1, 2, 3), interpolation="bicubic")
    assert prepared_by(KNOWN, options, None) == expected


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("text", ["a,b", "", "1;2", "1,,2"])
def test_numbers_that_are_none_are_refused(name, text):
    with pytest.raises(ValueError, match="takes numbers") as caught:
        prepared_by(None, {name: text}, None)
    sentence = f"--{name} takes numbers with commas between them, such as 0.5,0.5,0.5, got {text!r}."
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "CMYK"}, 'mode must be "RGB" or "L", got \'CMYK\''),
        ({"interpolation": "nearest"}, 'interpolation must be "bilinear" or "bicubic", got \'nearest\''),
        ({"mean": "0.5"}, "mean must have one number per channel of RGB, 3, got 1"),
    ],
)
def test_what_a_transform_does_not_take_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepared_by(None, options, None)


def command(
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    mode: Mode = None,
    interpolation: Interpolation = None,
) -> None:
    """Say how images would be prepared."""
    options = {"resize": resize, "crop": crop, "mean": mean, "std": std, "mode": mode, "interpolation": interpolation}
    typer.echo(prepared_by(None, options, None))


def test_a_command_takes_the_options_by_their_names():
    app = typer.Typer()
    app.command()(command)
    words = [word for name, value in EVERYTHING.items() for word in (f"--{name}", str(value))]
    done = CliRunner().invoke(app, words)
    assert done.stdout.strip() == str(prepared_by(None, EVERYTHING, None))
    for name in ("--resize", "--crop"):
        done = CliRunner().invoke(app, [name, "0"])
        assert done.exit_code == 2

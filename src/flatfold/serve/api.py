"""Description of the HTTP interface: response types, the OpenAPI document, and its HTML page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI
from jinja2 import Environment
from pydantic import BaseModel, Field

from ..display.look import MARK, icon
from .requests import FEATURES, FORM, JSON
from .scorer import Scorer
from .settings import Settings

TITLE = "flatfold guard"
BINARY = {"type": "string", "format": "binary"}


class Word(BaseModel):
    """A word that raises the score of a text; in long texts, several neighbouring words."""

    text: str = Field(description="The word, as the tokeniser decodes it.")
    score: float | None = Field(description="Score of the text without it.")
    p_value: float = Field(description="p-value of that score.")


class Row(BaseModel):
    """The verdict on one input."""

    name: str | None = Field(None, description="File name, for images of a form.")
    predicted: int | None = Field(
        description="The most likely class, counted from 0; null for a decision at every position."
    )
    class_: str | None = Field(alias="class", description="Its name, if the service has class names.")
    score: float | None = Field(description="Higher is more out-of-distribution; null if it is infinite.")
    p_value: float = Field(description="Conformal p-value; small if few calibration inputs score as high.")
    is_ood: bool = Field(description="Whether the input raises an alarm.")
    share_ood: float | None = Field(
        None, description="Share of positions with an alarm, for a segmentation network; all else is about the image."
    )
    mask: str | None = Field(
        None, description="PNG in base64 of the size of the logits, 255 where there is an alarm, with mask=true."
    )
    overlay: str | None = Field(
        None, description="PNG in base64 of the image as the model sees it, with its alarms in red, with overlay=true."
    )
    truncated: bool | None = Field(None, description="Whether the text was too long for the tokeniser, for texts.")
    explanation: str | None = Field(None, description="A sentence, with explain=true.")
    signs: dict[str, float | None] | None = Field(
        None, description="Deviation of each sign from ID inputs, in standard deviations, with explain=true."
    )

    tokens: list[Word] | None = Field(
        None, description="Words of the text without which its score is lowest, lowest first, with tokens=true."
    )


class Scores(BaseModel):
    """One row for each input, in the order of the request."""

    rows: list[Row]


class Stream(BaseModel):
    """The settings of the guard, and counts of all inputs since the service started."""

    guard: str | None = Field(description="Name of the guard's file, if known.")
    model: str | None = Field(description="Name of the model, if known; null if the service has none.")
    method: str = Field(description="Detection method.")
    fpr: float = Field(description="Share of ID inputs that may raise an alarm.")
    thresholds: list[float | None] = Field(description="Scores above it raise an alarm; one, or one per class.")
    calibrated: int = Field(description="Number of calibration inputs.")
    seen: int = Field(description="Inputs scored.")
    alarms: int = Field(description="Inputs that raised an alarm.")
    alarm_rate: float | None = Field(description="Share of alarms; null before the first input.")
    alarm_p_value: float = Field(description="p-value of the number of alarms under the calibration distribution.")
    drift: float | None = Field(
        description="Distance from the calibration scores, 0 to 1; null before the first input."
    )
    drift_p_value: float = Field(description="p-value of the drift under the calibration distribution.")
    edges: list[float | None] = Field(description="Edges of the bins of both histograms; null if infinite.")
    calibration: list[int] = Field(description="Calibration inputs in each bin.")
    live: list[int] = Field(description="Inputs of the stream in each bin.")
    width: int = Field(description="Number of features per row.")
    classes: int = Field(description="Number of classes.")
    names: list[str] | None = Field(description="Class names, if the service has them.")
    share_ood: float | None = Field(
        None, description="Mean share of the positions of an image with an alarm, for a segmentation network."
    )


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]


class Error(BaseModel):
    """The cause of the error and a suggestion."""

    error: str


ERRORS = {
    400: "The body is invalid: empty, a broken image, or non-finite numbers.",
    401: "The token is missing or wrong.",
    403: "Requests from this web page are not allowed.",
    408: "The request did not arrive in time.",
    413: "More bytes, images, rows or pixels than the limit.",
    415: "Unsupported Content-Type, or a compressed body; an image needs no Content-Type.",
    421: "Unknown name in the Host header.",
    422: "The model does not accept this input, or the query is invalid.",
    503: "Overloaded or shutting down. Retry after the number of seconds in Retry-After.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of error responses with these statuses, and of rejected requests."""
    return {status: {"model": Error, "description": ERRORS[status]} for status in sorted({*statuses, 403, 421})}


def request_body(scorer: Scorer, settings: Settings) -> dict[str, Any]:
    """Return the description of the body of /v1/score, with an example; without a network, features only."""
    rows = f"Rows of {scorer.width} little-endian float32 numbers, at most {settings.max_waiting} rows."
    content: dict[str, Any] = {FEATURES: {"schema": {**BINARY, "description": rows}}}
    example = f"--data-binary @features.f32 -H 'Content-Type: {FEATURES}'"
    if scorer.transform is not None:
        form = {
            "type": "object",
            "additionalProperties": BINARY,
            "description": f"At most {settings.max_images} images, each a file with any field name.",
        }
        image = {**BINARY, "description": "One image: BMP, GIF, JPEG, PNG, TIFF, WEBP or binary PPM."}
        content = {"image/*": {"schema": image}, FORM: {"schema": form}, **content}
        example = "--data-binary @cat.png"
    if scorer.tokeniser is not None:
        texts = {"type": "array", "items": {"type": "string"}, "maxItems": settings.max_texts, "minItems": 1}
        about = f"At most {settings.max_texts} texts of {settings.max_characters:,} characters."
        schema = {"type": "object", "properties": {"texts": texts}, "required": ["texts"], "description": about}
        content = {JSON: {"schema": schema}, **content}
        example = f"""-d '{{"texts": ["a text"]}}' -H 'Content-Type: {JSON}'"""
    token = "" if settings.token is None else " -H 'Authorization: Bearer TOKEN'"
    sample = {"lang": "Shell", "source": f"curl {example}{token} 'http://127.0.0.1:8000/v1/score?explain=true'"}
    return {"requestBody": {"required": True, "content": content}, "x-codeSamples": [sample]}


def about(settings: Settings) -> str:
    """Return the description of the service, with its limits."""
    return (
        "Scores images, texts and features: in-distribution (ID), or out-of-distribution (OOD) with an alarm. "
        f"Limits: {settings.max_body / 1e6:g} MB and {settings.max_images} images per request, "
        f"{settings.max_pixels:,} pixels per image, {settings.timeout:g} seconds. "
        "Paths without /v1 are aliases: /score and /stream."
    )


def openapi(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of a service; if it has a token, all paths but /healthz require it.

    So do ``/docs`` and the document itself, because they state limits and the width of the features.
    """
    document = app.openapi()
    if settings.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return document


def render(document: dict[str, Any], style: str) -> str:
    """Render an OpenAPI document as one HTML page without scripts."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("docs.html").read_text(encoding="utf8"))
    look = {"style": style, "mark": MARK, "icon": icon()}
    return template.render(document=document, schemas=document["components"]["schemas"], type_name=_type, **look)


def _type(schema: dict[str, Any]) -> str:
    """Describe the type of a JSON schema in a few words: ``list of number or null``."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f'"{schema["const"]}"' if "const" in schema else str(schema.get("format") or schema.get("type", "any"))

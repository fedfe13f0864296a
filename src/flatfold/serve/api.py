"""The description of the HTTP interface: types of the answers, the OpenAPI document, and a page that shows it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI
from jinja2 import Environment
from pydantic import BaseModel, Field

from .requests import FEATURES, FORM
from .scorer import Scorer
from .settings import Settings

TITLE = "flatfold guard"
BINARY = {"type": "string", "format": "binary"}


class Row(BaseModel):
    """The verdict on one input."""

    name: str | None = Field(None, description="File name, for images of a form.")
    predicted: int = Field(description="The most likely class, counted from 0.")
    class_: str | None = Field(alias="class", description="Its name, if the service knows names.")
    score: float | None = Field(description="Higher is more out-of-distribution; null if it is infinite.")
    p_value: float = Field(description="Small if few calibration inputs have a score as high.")
    is_ood: bool = Field(description="Whether the input raises an alarm.")
    explanation: str | None = Field(None, description="A sentence, with explain=true.")
    signs: dict[str, float | None] | None = Field(
        None, description="How unusual each sign is, in standard deviations, with explain=true."
    )


class Scores(BaseModel):
    """One row for each input, in the order of the request."""

    rows: list[Row]


class Stream(BaseModel):
    """The settings of the guard, and counts of all inputs since the service has started."""

    method: str = Field(description="Detection method.")
    fpr: float = Field(description="Share of ID inputs that may raise an alarm.")
    thresholds: list[float | None] = Field(description="Alarm above this score; one, or one for each class.")
    calibrated: int = Field(description="Number of calibration inputs.")
    seen: int = Field(description="Inputs scored.")
    alarms: int = Field(description="Inputs that raised an alarm.")
    alarm_rate: float | None = Field(description="Share of alarms; null at first.")
    alarm_p_value: float = Field(description="Of so many alarms if all inputs were like the calibration data.")
    drift: float | None = Field(description="Distance from the calibration scores, 0 to 1; null at first.")
    drift_p_value: float = Field(description="Of so much drift if all inputs were like the calibration data.")
    edges: list[float | None] = Field(description="Edges of the bins of both histograms; null if infinite.")
    calibration: list[int] = Field(description="Calibration inputs in each bin.")
    live: list[int] = Field(description="Inputs of the stream in each bin.")
    width: int = Field(description="Numbers in a row of features.")
    classes: int = Field(description="Number of classes.")
    names: list[str] | None = Field(description="Their names, if the service knows them.")


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]


class Error(BaseModel):
    """What is wrong, and what to do."""

    error: str


ERRORS = {
    400: "The body cannot be read: empty, broken image, numbers that are not finite.",
    401: "The token is missing or wrong.",
    403: "Requests from this web page are not allowed.",
    408: "The request did not arrive in time.",
    413: "More bytes, images, rows or pixels than the limit.",
    415: "Another Content-Type than those above, or a compressed body.",
    421: "Unknown name in the Host header.",
    422: "The model cannot take this input, or the query is wrong.",
    503: "Too busy, or shutting down. Try again after the seconds of Retry-After.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of answers to failed requests: those with these statuses, and refused ones."""
    return {status: {"model": Error, "description": ERRORS[status]} for status in sorted({*statuses, 403, 421})}


def request_body(scorer: Scorer, settings: Settings) -> dict[str, Any]:
    """Return the description of what /v1/score takes, with an example; without a network, no images."""
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
        example = "--data-binary @cat.png -H 'Content-Type: image/png'"
    token = "" if settings.token is None else " -H 'Authorization: Bearer TOKEN'"
    sample = {"lang": "Shell", "source": f"curl {example}{token} 'http://127.0.0.1:8000/v1/score?explain=true'"}
    return {"requestBody": {"required": True, "content": content}, "x-codeSamples": [sample]}


def about(settings: Settings) -> str:
    """Return the description of the service, with its limits."""
    return (
        "Scores images and features: in-distribution (ID), or out-of-distribution (OOD) with an alarm. "
        f"Limits: {settings.max_body / 1e6:g} MB and {settings.max_images} images per request, "
        f"{settings.max_pixels:,} pixels per image, {settings.timeout:g} seconds. "
        "Paths without /v1 are aliases: /score and /stream."
    )


def openapi(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of a service; where it has a token, all paths but /healthz need it.

    So do ``/docs`` and the document itself, because they state limits and the width of the features.
    """
    document = app.openapi()
    if settings.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return document


def render(document: dict[str, Any], style: str) -> str:
    """Return an OpenAPI document as one HTML page without scripts."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("docs.html").read_text(encoding="utf8"))
    return template.render(document=document, style=style, schemas=document["components"]["schemas"], type_name=_type)


def _type(schema: dict[str, Any]) -> str:
    """Return a JSON schema in a few words: ``list of number or null``."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f'"{schema["const"]}"' if "const" in schema else str(schema.get("format") or schema.get("type", "any"))

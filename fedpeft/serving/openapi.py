"""The OpenAPI description of the endpoint, and a page that shows it without scripts."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fedpeft.serving.limits import Limits
from fedpeft.version import __version__

_TEXT = {"type": "string"}
_NAME = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
_WORDS = {"type": "array", "items": _TEXT}
_SHARES = {"type": "object", "additionalProperties": {"type": "number"}}
_REASONS = {
    400: "The body is not the expected JSON.",
    401: "The token is missing or wrong.",
    403: "The server has no operator's token.",
    404: "No such vector is served.",
    408: "The body arrived too slowly.",
    413: "The body or a text is too long.",
    422: "The text or the vector's file is invalid; the error says why.",
    429: "Too many texts per second; see Retry-After.",
    500: "An output is not finite.",
    503: "Too many texts are waiting; see Retry-After.",
}


def specification(limits: Limits) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description with the limits of this server."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedpeft serve", "version": __version__},
        "paths": {
            "/predict": {"post": _predict(limits)},
            "/vectors": {"get": _operation("List the names of the vectors.", _list(), 401)},
            "/vectors/{name}": _vector(limits),
            "/health": {"get": _operation("Return 200 while the server answers.", _counts())},
            "/metrics": {"get": _operation("Return metrics for Prometheus.", None, 401)},
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def page(described: dict[str, Any]) -> str:
    """Return the description as HTML."""
    parts = []
    for path, operations in described["paths"].items():
        for method, operation in ((m, o) for m, o in operations.items() if m != "parameters"):
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['summary'])}</p>")
            if body := operation.get("requestBody"):
                shown = json.dumps(body["content"], indent=1)
                parts.append(f"<pre>{escape(shown)}</pre>")
            items = (
                f"<li>{status}: {escape(answer['description'])}</li>"
                for status, answer in operation["responses"].items()
            )
            parts.append(f"<ul>{''.join(items)}</ul>")
    title = f"fedpeft serve {escape(described['info']['version'])}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<h1>{title}</h1><p><a href="openapi.json">openapi.json</a></p>{"".join(parts)}</html>\n'
    )


def _predict(limits: Limits) -> dict[str, Any]:
    item = {
        "type": "object",
        "required": ["vector", "text"],
        "additionalProperties": False,
        "properties": {
            "vector": {"type": "string", "description": "name of a served vector"},
            "text": {
                "anyOf": [{"type": "string", "maxLength": limits.characters}, _WORDS],
                "description": "a text; for tags also a list of words",
            },
            "text_pair": {"type": "string", "description": "second text, for tasks on pairs"},
        },
    }
    inputs = {"type": "array", "minItems": 1, "maxItems": limits.inputs, "items": item}
    answer = {
        "type": "object",
        "properties": {
            "vector": _TEXT,
            "prediction": {"description": "a label, a score, or the tag of each word"},
            "probabilities": {"anyOf": [_SHARES, {"type": "array"}]},
        },
    }
    operation = _operation(
        "Predict for texts, each with a vector of its own.",
        _object({"predictions": {"type": "array", "items": answer}}),
        *(400, 401, 404, 408, 413, 422, 429, 500, 503),
    )
    body = {**_object({"inputs": inputs}, "inputs"), "additionalProperties": False}
    return {**operation, "requestBody": {**_content(body), "required": True}}


def _vector(limits: Limits) -> dict[str, Any]:
    file = {"content": {"application/octet-stream": {"schema": {"maxLength": limits.vector}}}}
    about = _object({"name": _TEXT, "task": _TEXT, "method": _TEXT, "digest": _TEXT})
    add = _operation(
        "Add or replace a vector; the body is the file of `fedpeft export --format vector`. "
        "Needs the operator's token.",
        about,
        *(401, 403, 408, 413, 422),
    )
    remove = _operation("Remove a vector. Needs the operator's token.", None, 401, 403, 404)
    add["responses"]["201"] = {**add["responses"]["200"], "description": "Added."}
    return {
        "parameters": [_NAME],
        "get": _operation("Describe a vector.", about, 401, 404),
        "put": {**add, "requestBody": {**file, "required": True}},
        "delete": remove,
    }


def _operation(summary: str, schema: dict[str, Any] | None, *errors: int) -> dict[str, Any]:
    success = {"description": "Success.", **(_content(schema) if schema else {})}
    error = _content(_object({"error": _TEXT}))
    responses = {"200": success} | {
        str(status): {"description": _REASONS[status], **error} for status in errors
    }
    return {"summary": summary, "responses": responses}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _list() -> dict[str, Any]:
    return _object({"vectors": _WORDS})


def _counts() -> dict[str, Any]:
    return _object({"vectors": {"type": "integer"}, "waiting": {"type": "integer"}})

"""Objects held against a CustomResourceDefinition, as an API server does it with strict validation.

``tests/deploy/crds`` has the definitions, and says what is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CRDS = Path(__file__).parents[1] / "deploy" / "crds"
Schema = dict[str, Any]
_KEYS, _UNKNOWN = "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields"


def refused(kind: str, manifest: Schema) -> list[str]:
    """Why a server would refuse an object of a kind, ``mpijob`` for one: a line for each reason.

    Args:
        kind: the definition's file.
        manifest: the object.
    """
    definition = _definition(kind)
    (version,) = definition["spec"]["versions"]
    wanted = {
        "apiVersion": f"{definition['spec']['group']}/{version['name']}",
        "kind": definition["spec"]["names"]["kind"],
    }
    wrong = [f"{key}: {manifest.get(key)} is not {text}" for key, text in wanted.items() if manifest.get(key) != text]
    found = _validator(kind).iter_errors(manifest)
    return [*wrong, *(f"{each.json_path}: {each.message}" for each in found)]


@cache
def _definition(kind: str) -> Schema:
    found: Schema = json.loads((CRDS / f"{kind}.json").read_text())
    return found


@cache
def _validator(kind: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    (version,) = _definition(kind)["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own, which kubernetes-validate has

    def unique(_: Any, keys: list[str], items: Any, schema: Schema) -> Iterator[Any]:
        found = [_key(item, keys, schema["items"]["properties"]) for item in items]
        for twice in sorted({str(key) for key in found if found.count(key) > 1}):
            yield jsonschema.ValidationError(f"{', '.join(keys)} is {twice} more than once")

    draft = jsonschema.Draft202012Validator
    return jsonschema.validators.extend(draft, {_KEYS: unique})(schema)


def _key(item: Schema, keys: list[str], properties: Schema) -> tuple[Any, ...]:
    """Of an item of a list that is a map; a key that is left out has its default."""
    return tuple(item.get(key, properties[key].get("default")) for key in keys)


def _closed(schema: Schema) -> Schema:
    """A structural schema as JSON Schema: no field but those that it names, and integers or texts where it says so."""
    closed = {key: value for key, value in schema.items() if key not in ("properties", "items", "additionalProperties")}
    if "properties" in schema:
        closed["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = _closed(schema["additionalProperties"])
    elif schema.get("type") == "object" and not schema.get(_UNKNOWN):
        closed["additionalProperties"] = schema.get("additionalProperties", False)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    if schema.get("nullable"):
        closed["type"] = [schema["type"], "null"]
    return closed


__all__ = ["CRDS", "refused"]

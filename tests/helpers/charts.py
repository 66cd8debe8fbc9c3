"""The chart of ``deploy/kubernetes``, rendered by Helm's own library, which PyPI has as ``helm-python-sdk``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "kubernetes" / "workbench"
RELEASE, NAMESPACE = "demo", "ml"
Document = dict[str, Any]
TEMPLATES = ("StatefulSet", "Job", "Deployment")
"""Kinds of the core that hold a pod template."""


def helm() -> Any:
    """The library; without it the test is skipped."""
    return pytest.importorskip("helm_python", reason="the chart's tests need helm-python-sdk (extra dev)")


def values(**others: Any) -> dict[str, Any]:
    """The least that the chart must be told, and more."""
    image = {"repository": "registry.example/workbench", "tag": "1.2.3"}
    return {"image": image, "command": ["python", "train.py"], **others}


def rendered(told: Mapping[str, Any], release: str = RELEASE) -> dict[str, str]:
    """By file what ``helm template`` gives."""
    chart = helm().Chart.load(str(CHART))
    texts: dict[str, str] = chart.render(values=dict(told), name=release, namespace=NAMESPACE)
    return texts


def documents(told: Mapping[str, Any], release: str = RELEASE) -> list[Document]:
    """All objects that Kubernetes would get."""
    texts = (text for name, text in rendered(told, release).items() if not name.endswith("NOTES.txt"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def one(found: list[Document], kind: str, ends: str = "") -> Document:
    """The object of a kind whose name ends so."""
    (document,) = (each for each in found if each["kind"] == kind and ends in each["metadata"]["name"])
    return document


def pod_specs(found: list[Document]) -> Iterator[tuple[str, Document]]:
    """Each pod template's specification, with its object's name."""
    for document in found:
        if document["kind"] in TEMPLATES:
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def containers(spec: Document) -> list[Document]:
    """Of a pod, those that come first too."""
    return [*spec.get("initContainers", []), *spec["containers"]]

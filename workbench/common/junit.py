"""JUnit's XML, which CI systems and course platforms read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring


@dataclass(frozen=True)
class JunitCase:
    """One test.

    Args:
        group: shown before the name: ``lesson.03``.
        name: the test's own.
        outcome: "" if it passed, else ``failure``, ``error`` or ``skipped``.
        message: why, in a line.
        text: why, in full.
        seconds: that it took; None if nobody measured it.
    """

    group: str
    name: str
    outcome: str = ""
    message: str = ""
    text: str = ""
    seconds: float | None = None


def suite(name: str, cases: Iterable[JunitCase]) -> Element:
    """Tests that belong together, counted."""
    cases = list(cases)
    outcomes = Counter(case.outcome for case in cases)
    element = Element("testsuite", name=name, tests=str(len(cases)))
    for attribute, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(outcomes[outcome]))
    if measured := [case.seconds for case in cases if case.seconds is not None]:
        element.set("time", f"{sum(measured):.1f}")
    for case in cases:
        test = SubElement(element, "testcase", classname=case.group, name=case.name)
        if case.seconds is not None:
            test.set("time", f"{case.seconds:.1f}")
        if case.outcome:
            SubElement(test, case.outcome, message=case.message).text = case.text or None
    return element


def suites(each: Iterable[Element]) -> Element:
    """Several suites in one document."""
    root = Element("testsuites")
    root.extend(each)
    return root


def document(root: Element) -> str:
    """A suite, or several, as the text of a file.

    Example:
        >>> print(document(suite("all", [JunitCase("lesson.03", "ring", "failure", "not passed")])), end="")
        <?xml version='1.0' encoding='utf-8'?>
        <testsuite name="all" tests="1" failures="1" errors="0" skipped="0">
          <testcase classname="lesson.03" name="ring">
            <failure message="not passed" />
          </testcase>
        </testsuite>
    """
    indent(root)
    text: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return text.decode() + "\n"

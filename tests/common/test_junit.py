"""JUnit's XML can be read back, whatever texts are in it."""

from __future__ import annotations

from xml.etree import ElementTree

from workbench.common.junit import JunitCase, document, suite, suites

ODD = "a <b> & \"c\"\n]]> 'd' ✗"


def test_counts_and_texts_come_back() -> None:
    """Each outcome is counted once, and no letter is lost."""
    outcomes = ["", "failure", "error", "skipped", "failure"]
    cases = [JunitCase("group", str(i), outcome, "why", ODD, seconds=0.25) for i, outcome in enumerate(outcomes)]
    root = ElementTree.fromstring(document(suite(ODD.partition("\n")[0], cases)).encode())
    wanted = {"tests": "5", "failures": "2", "errors": "1", "skipped": "1", "time": "1.2"}
    assert {key: root.attrib[key] for key in wanted} == wanted
    assert root.attrib["name"] == ODD.partition("\n")[0]
    assert [[inner.tag for inner in test] for test in root] == [[outcome] if outcome else [] for outcome in outcomes]
    assert [inner.text for test in root for inner in test] == [ODD] * 4


def test_what_nobody_measured_has_no_time() -> None:
    """Neither a case nor its suite claims zero seconds; several suites stand in one document."""
    root = ElementTree.fromstring(document(suites([suite("a", [JunitCase("g", "n")]), suite("b", [])])).encode())
    assert [each.attrib["name"] for each in root] == ["a", "b"]
    assert "time" not in root[0].attrib
    assert "time" not in root[0][0].attrib

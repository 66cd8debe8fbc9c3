"""A page without a kernel judges a guess as a notebook does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from workbench.course.predictions import page, widget
from workbench.course.predictions.question import Question

pytestmark = [pytest.mark.course, pytest.mark.integration]

FOLDER = Path(widget.__file__).parent
ASK = Question("99.n", "How many?", "number", unit="messages")
UNITS = [ASK, Question("99.t", "How long?", "number", unit="ms", tolerance=0), Question("99.r", "?", "number")]
TYPED = ["12", " 1,200 ", "1,5", "1.5e3", "-3", "0", ".5", "5.", "12 messages", "1,234,567.5", "12,34", "1e400", "0x10"]
TYPED += ["", "many", "inf", "nan", "12 ms", "1 2", "+7", "messages", "1e-7", "--1"]
NUMBERS = [0, 1, -1, 3, 3.3, 2.97, 2.9699, 12.5, 99.95, 9999.6, 0.5, 0.123456, 1234.5, 12344.5, 99999.5, 123456]
NUMBERS += [1e11, 2.5e-5, 0.1 + 0.2, 1e-4, 9.9999e-5, 1e9 + 0.1]
ORDER = Question("99.o", "?", "order", ("a", "b", "c"))
OTHERS: list[tuple[Question, Any, Any]] = [
    (Question("99.c", "?", "choices", ("2 MB", "12 MB")), "2 MB", "12 MB"),
    (Question("99.c", "?", "choices", ("2 MB", "12 MB")), "12 MB", "12 MB"),
    (ORDER, ["a", "b", "c"], ["a", "b", "c"]),
    (ORDER, ["b", "a", "c"], ["a", "b", "c"]),
    (ORDER, None, ["a", "b", "c"]),
    (ASK, None, 3),
    (ASK, 3, "something that a learner's own change has made of it"),
]
CASES = [(asked, *pair) for asked in UNITS for pair in itertools.product(NUMBERS, repeat=2)] + OTHERS
RUN = """
([typed, cases]) => [
    typed.map(([asked, text]) => {
        try { return wbJudge.accept(asked, text) } catch (error) { return error.message }
    }),
    cases.map(([asked, guess, told]) => wbJudge.verdict(asked, guess, told)),
]
"""


def accepted(asked: Question, text: str) -> Any:
    """What a kernel makes of it: an answer, or why it is none."""
    try:
        return asked.accept(text)
    except ValueError as error:
        return str(error)


def test_the_page_says_what_the_kernel_says(browser: Any) -> None:
    """For each typed text, the same number or the same words; for each guess and fact, the same verdict."""
    window = browser.new_page()
    for name in ("form.js", "judge.js"):
        window.add_script_tag(content=(FOLDER / name).read_text(encoding="utf-8"))
    told = [page.verdict(*case, "Why.") for case in CASES]
    typed = [(asked, text) for asked in UNITS for text in TYPED]
    data = [[[page.as_data(asked), text] for asked, text in typed]]
    data.append([[page.as_data(asked), guess, one] for (asked, guess, _), one in zip(CASES, told, strict=True)])
    numbers, verdicts = window.evaluate(RUN, data)
    window.close()
    wrong = [(text, one, accepted(*text)) for text, one in zip(typed, numbers, strict=True) if one != accepted(*text)]
    assert wrong == []
    expected = [{key: one[key] for key in ("guess", "off", "right", "fact", "why")} for one in told]
    assert [pair for pair in zip(verdicts, expected, strict=True) if pair[0] != pair[1]] == []

"""Known wrong versions are told from each other by their results; what is not known is said to be unknown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged import exercises
from verdicts import bare

from workbench.course.judging import judge
from workbench.course.judging.cause import UNKNOWN
from workbench.course.judging.mistake import Mistake, read
from workbench.course.judging.recognise import same, version
from workbench.course.tasks import names, task

WITHOUT = [name for name in names() if not task(name).versions]


def first_red(name: str, function: Any) -> judge.Stage:
    """The stage at which the check ends."""
    return next(stage for stage in judge.judge(task(name), function) if stage.passed is False)


@pytest.mark.parametrize("name", exercises(*WITHOUT))
def test_each_wrong_version_is_rejected_by_its_own_cause(name: str) -> None:
    """The wrong version is red; its own cause stands first, and chooses its own hint."""
    one = task(name)
    for known in one.versions:
        stage = first_red(name, version(one.reference, known))
        assert stage.text.startswith(known.cause), (known.cause, stage.text)
        assert not bare(f"{stage.name}: {stage.text}".splitlines()[0])
        assert one.helps(f"{stage.name}: {stage.text}") in {k.hint for k in one.versions if k.cause == known.cause}


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    """No cause and no hint is guessed for an answer that is like nothing that is known."""

    def strange(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
        return 17 * alpha_s + n**3 * beta_s + nbytes * 1e-3

    stage = first_red("08.ring_time", strange)
    assert stage.text.startswith(UNKNOWN)
    assert task("08.ring_time").helps(f"{stage.name}: {stage.text}") == ""


def test_a_line_in_no_form_is_an_error(tmp_path: Path) -> None:
    """What an author mistypes is not left out in silence."""
    (path := tmp_path / "mistakes.txt").write_text("# 00.sum\n\n? How many?\n! too many\n+ without an old text\n")
    with pytest.raises(ValueError, match=r"mistakes\.txt: a block is"):
        read(path)


def test_an_old_text_that_is_gone_is_an_error() -> None:
    """Who changes a solution is told which known mistakes have to change with it."""
    with pytest.raises(ValueError, match=r"'y' is not in the solution"):
        Mistake("hint", cause="cause", edits=(("y", "z"),)).version_of("def f(x):\n    return x", {})


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([1, (2.0, None)], (1.0, [2, None]), True),
        ({"a": [1]}, {"a": [1 + 1e-12]}, True),
        ([float("nan")], [float("nan")], True),
        ([1], [1, 2], False),
        ("1", 1, False),
        (np.zeros(2), 10**400, False),
        (10**400, 0.5, False),
    ],
)
def test_same(a: Any, b: Any, equal: bool) -> None:
    """Numbers are equal up to rounding, whatever holds them."""
    assert same(a, b) is equal


def test_types_as_numpy_and_torch_people_write_them() -> None:
    """Arrays without dimensions, tensors, arrays of two and generators are what their numbers say."""
    from workbench.course.judging.plain import plain

    torch = sys.modules.get("torch") or pytest.importorskip("torch")
    assert plain(np.array(2.5)) == plain(torch.tensor(2.5)) == 2.5
    assert plain((np.array([1, 2]), torch.tensor([3]))) == ([1, 2], [3])
    assert plain({np.int64(1): range(2)}) == {1: [0, 1]}

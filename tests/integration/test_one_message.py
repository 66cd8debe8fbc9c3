"""One bad cell, one message: what a learner sees in the notebook when ``%%px`` fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.cluster import cells

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

WAITED = ("RankFailedError", "Rank 2 raised an exception, so 'x' can never complete.\n  more", "a long traceback")


def test_the_cause_comes_first_and_the_others_in_a_line() -> None:
    """Whose own mistake it was is shown with the traceback; who waited, in one line for equal words."""
    found = [(0, *WAITED), (1, *WAITED), (2, "KeyError", "'lr'", "Traceback\nKeyError: 'lr'"), (3, *WAITED)]
    assert cells.message(found) == [
        "rank 2:",
        "Traceback",
        "KeyError: 'lr'",
        "",
        "  ranks 0, 1, 3: RankFailedError: Rank 2 raised an exception, so 'x' can never complete.",
    ]


def test_a_mistake_that_all_make_is_shown_once() -> None:
    """Four times the same NameError is one traceback."""
    found = [(rank, "NameError", "name 'y' is not defined", f"Traceback of {rank}") for rank in range(4)]
    assert cells.message(found) == ["ranks 0, 1, 2, 3:", "Traceback of 0"]


def test_a_collective_error_of_all_is_shown_once() -> None:
    """Where nobody raised by himself, the first rank's error says what there is to say."""
    found = [(rank, "MissingRanksError", "Rank 1 is idle", "the traceback") for rank in (0, 2)]
    assert cells.message(found) == ["ranks 0, 2:", "the traceback"]


@pytest.mark.parametrize(
    ("name", "before", "behind"),
    [
        ("RuntimeError", "Got the following error when running the callback: ", "\n\nAt:\n  works.py(104): _deliver"),
        ("UnknownError", "Graph execution error:\n\nFile core.py\n\n", "\n\t [[{{node waits_for_ranks}}]] [Op:f_14]"),
        ("JaxRuntimeError", "INTERNAL: Traceback (most recent call last):\nworkbench.errors.", ""),
    ],
)
def test_an_error_that_went_through_a_framework(name: str, before: str, behind: str) -> None:
    """It has our class and text again; so the rank whose mistake it was comes first, and no frame is a library's."""
    text = f"{before}{WAITED[0]}: {WAITED[1]}{behind}"
    trace = f"{name}  Traceback\nCell In[2], line 3\n\nFile /lib/site-packages/torch/graph.py:9\n\n{name}: {text}"
    waited = SimpleNamespace(elist=[(name, text, trace, {"engine_id": 0})])
    assert cells.message(cells.failures(waited)) == [
        "rank 0:",
        f"{WAITED[0]}  Traceback",
        "Cell In[2], line 3",
        "",
        *f"{WAITED[0]}: {WAITED[1]}".splitlines(),
    ]
    waited.elist += [("KeyError", "'lr'", "File /lib/site-packages/torch/a.py\n\nKeyError: 'lr'", {"engine_id": 1})]
    assert cells.message(cells.failures(waited)) == [
        "rank 1:",
        "File /lib/site-packages/torch/a.py",
        "",
        "KeyError: 'lr'",
        "",
        "  rank 0: RankFailedError: Rank 2 raised an exception, so 'x' can never complete.",
    ]


def test_an_engine_that_has_died_comes_first() -> None:
    """It is named as the client does it, with those that died before; then who waited, or made a mistake."""
    lost = ("PeerLostError", "Rank 1 was lost: its process has ended.", "a long traceback")
    gone = "engines 1, 3 are gone: call engines.rescue() in a cell without %%px."
    died, before = (1, "EngineError", gone, ""), (3, "EngineError", gone.replace("s 1, 3 are", " 3 is"), "")
    waited = "  ranks 0, 2: PeerLostError: Rank 1 was lost: its process has ended."
    assert cells.message([died, before]) == [gone]
    assert cells.message([(0, *lost), died, (2, *lost)]) == [gone, "", waited]
    mistake = (2, "KeyError", "'lr'", "Traceback\nKeyError: 'lr'")
    assert cells.message([died, mistake])[:3] == [gone, "", "rank 2:"]

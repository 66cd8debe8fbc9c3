"""Newcomers' questions, in the words of what they see, asked of the site's own search in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

pytestmark = [pytest.mark.course, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

# What is typed → the pages that answer it.
QUESTIONS = {
    "cell hangs": ["how-to/debug", "explanation/no-cell-hangs"],
    "rank 2 is idle": ["how-to/debug"],
    "loss differs between ranks": ["how-to/debug"],
    "no module named horovod": ["how-to/install", "how-to/debug"],
    "address already in use": ["how-to/debug"],
    "convert horovod script": ["how-to/convert"],
    "slow rank": ["how-to/straggler"],
    "rank was killed": ["how-to/rank-dies"],
    "pip install": ["how-to/install"],
    "run on two hosts": ["how-to/hosts"],
    "slurm": ["how-to/slurm"],
    "resume from checkpoint": ["how-to/checkpoints"],
    "NaN": ["how-to/debug"],
    "restart engines": ["how-to/notebook"],
    "which GPU": ["how-to/gpus"],
    "mpiexec not found": ["how-to/install"],
    "out of memory": ["how-to/faster"],
    "grade notebooks": ["how-to/grade"],
    "windows": ["how-to/macos-windows", "reference/compatibility"],
    "more ranks are slower": ["how-to/faster", "notebooks/08_is_it_faster"],
    "predict speed": ["how-to/predict"],
    "teach a class": ["how-to/teach"],
    "wrong sum": ["how-to/debug"],
    "weights differ": ["how-to/debug"],
    "accelerate": ["how-to/convert"],
    "kernel died": ["how-to/notebook", "how-to/rank-dies", "notebooks/15_a_rank_dies"],
    "uneven number of batches": ["how-to/debug"],
    "torchrun": ["how-to/start", "how-to/convert"],
    "name is not defined": ["how-to/debug", "how-to/notebook"],
    "deadlock": ["how-to/debug", "explanation/no-cell-hangs", "notebooks/11_find_the_bug"],
    "environment variables": ["reference/settings"],
    "stop a cell": ["how-to/notebook"],
    "colab": ["reference/compatibility", "how-to/teach"],
    "is it secure": ["explanation/security", "about/security"],
}
_FOUND = "() => document.querySelector('#search-results .search-summary')?.innerText.match(/found|did not match/)"
_PAGES = "found => found.map(one => one.getAttribute('href').replace(/[?#].*/, '').replace('.html', ''))"


def found(page: Any, address: str, words: str) -> list[str]:
    """The pages that the search shows, in its order."""
    page.goto(f"{address}/search.html?q={quote(words)}")
    page.wait_for_function(_FOUND)
    pages: list[str] = page.eval_on_selector_all("#search-results ul.search > li > a", _PAGES)
    return list(dict.fromkeys(pages))


@pytest.mark.thorough
def test_each_question_is_answered_in_the_first_three_hits(visit: Callable[..., Any], address: str) -> None:
    """One of the pages that answer it is among the first three that the search shows."""
    page = visit().page
    wrong = {}
    for words, answers in QUESTIONS.items():
        if not {*answers} & {*(hits := found(page, address, words)[:3])}:
            wrong[words] = hits
    assert wrong == {}

"""What becomes of scripts that others have published; helpers/public_scripts.py makes the list of them."""

from __future__ import annotations

import re

from doc_blocks import ROOT
from public_scripts import counts, scripts

PAGE = ROOT / "docs" / "how-to" / "convert-your-script.md"


def test_the_page_says_what_the_list_has() -> None:
    """Of so many scripts, converted, with something to decide, and refused."""
    said = re.search(
        r"Of (\d+) scripts .* (\d+) are converted .* (\d+) with .* (\d+) are refused", PAGE.read_text(), re.DOTALL
    )
    found = counts()
    assert said is not None
    assert [int(each) for each in said.groups()] == [
        found.total(), *(found[each] for each in ("converted", "to decide", "refused"))
    ]  # fmt: skip
    assert found["converted"] + found["to decide"] >= 0.6 * found.total()


def test_each_script_can_be_found_again() -> None:
    """A repository, a commit and a path, each once."""
    listed = [(each["repository"], each["path"]) for each in scripts()]
    assert len(set(listed)) == len(listed)
    assert all(re.fullmatch("[0-9a-f]{40}", each["commit"]) for each in scripts())

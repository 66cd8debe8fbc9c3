"""Every class of error has a page, and each page's examples raise what they say they raise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import once_more

from workbench import errors
from workbench.diagnostics.explain import PAGES, explanation, names

CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_class_has_a_page_and_every_page_a_class() -> None:
    """None is forgotten, and none is left over."""
    assert {path.stem for path in PAGES.glob("*.md")} == set(errors.__all__) == set(names())


def test_a_page_has_what_a_reader_looks_for() -> None:
    """What it means, its causes, and an example of ten lines or so."""
    for name in names():
        text = explanation(name)
        assert text.startswith(f"# {name}\n\n")
        assert "## Causes\n\n### " in text, name
        assert CODE.search(text), name
        assert all(len(code.splitlines()) <= 14 for code in CODE.findall(text)), name


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["RankFailedError", *(once_more(each) for each in names() if each != "RankFailedError")]
)
def test_an_example_raises_the_error_that_it_explains(name: str, tmp_path: Path) -> None:
    """On two ranks, as a reader would run it."""
    if name == "DataNotFoundError" and list(Path("/usr/share").glob("*/fashion-mnist")):
        pytest.skip("the data set is on this machine")
    for number, code in enumerate(CODE.findall(explanation(name))):
        script = tmp_path / f"example{number}.py"
        script.write_text(code)
        n = "3" if "run -np 3" in code else "2"
        command = [sys.executable, "-m", "workbench.cli.main", "run", "-np", n, "--gloo", sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert re.search(rf"\b{name}: ", done.stdout + done.stderr), done.stdout + done.stderr

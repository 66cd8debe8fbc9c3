"""The calculators' sliders as a learner moves them in JupyterLab."""

from __future__ import annotations

from pathlib import Path

import pytest
from labs import RING_EXERCISES, Notebook, in_browser, needs_make, visible

pytestmark = [
    *[pytest.mark.integration, pytest.mark.course, pytest.mark.slow, pytest.mark.timeout(300)],
    *[needs_make, in_browser],
]

SHOW = "from workbench.course.calculators import explore\nexplore.{}()"
TOO_WIDE = """
() => [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output')]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => each.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_a_slider_redraws_the_picture(notebook: Notebook, tmp_path: Path) -> None:
    """Each slider has a name and says its value with its unit; the keyboard moves it, and the picture follows."""
    for which, words, before, after in (
        ("step", "ranks n", "n = 8,", "n = 16,"),
        ("memory", "ranks n", "n = 8,", "n = 16,"),
    ):
        notebook.paste(0, SHOW.format(which))
        notebook.run(0)
        page = notebook.page
        picture = page.locator(".jp-Notebook .widget-html svg")
        picture.wait_for()
        assert before in picture.inner_html()
        slider = page.locator(".jp-Notebook .widget-hslider", has_text=words)
        handle = visible(slider.locator(".noUi-handle"))
        handle.focus()
        handle.press("ArrowRight")
        page.locator(".jp-Notebook .widget-html svg text", has_text=after).first.wait_for()
        assert "16 ranks" in slider.inner_text()
        assert page.evaluate(TOO_WIDE) == []
        notebook.picture(tmp_path / f"{which}.png")

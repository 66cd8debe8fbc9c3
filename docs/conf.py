"""Sphinx: pages from notebooks that are executed already, docstrings, and the texts in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

project = "workbench"
html_title = "workbench"
copyright = "the workbench project. Texts: CC BY 4.0, code: Apache 2.0"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxext.opengraph",
]
exclude_patterns = ["files", "**/README.md"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_render_error_lexer = "myst-ansi"  # a rank stands before each traceback
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
ogp_social_cards = {"enable": False}  # they need a font of the network
ogp_enable_meta_description = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as written, rather than an object at some address
add_module_names = False  # each page is one module's
napoleon_google_docstring = True

html_theme = "furo"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_css_files = ["player.css", "predictions.css", "site.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_js_files = ["player.js", "form.js", "judge.js", "predictions.js", "site.js"]  # in this order
html_extra_path = ["llms.txt"]
if tags.has("live"):  # noqa: F821 - Sphinx's; the site has what runs its cells, see workbench/course/browser
    html_css_files.append("live/page.css")
    html_js_files.append("live/page.js")
html_copy_source = False  # no page's source, so no solution's, lies beside the pages
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _levels(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Captions of lists of pages are headings without a level, which is an error for who listens to the page."""
    for key in ("furo_navigation_tree", "body"):
        if key in context:
            context[key] = context[key].replace('class="caption" role="heading"', 'class="caption"')


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("html-page-context", _levels, priority=900)  # after the theme has made its navigation

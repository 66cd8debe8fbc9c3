"""Sphinx: pages from notebooks that are executed already, docstrings, and the texts in this folder."""

project = "workbench"
html_title = "workbench"
copyright = "the workbench's authors, Apache 2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["files", "**/README.md"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "myst-ansi"  # a rank stands before each traceback
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["player.css", "site.css"]
html_js_files = ["player.js", "site.js"]
html_copy_source = False  # no page's source, so no solution's, lies beside the pages
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp, .go"

"""Static pages from what the checkout holds: ``make site``. Nothing is executed, and nothing of the network is needed.

::

    links.py        previous, next, lesson ↔ exercises ↔ solutions: in every notebook, and on the pages
    pictures.py     an SVG that follows the theme of a page; a player's picture, ready to be played
    notebooks.py    an executed notebook → one that Sphinx can read
    texts.py        links of hand-written texts, as they are on the site
    reference.py    pages of the API and of the benchmarks
    command_line.py a page of all commands and options, from their parsers
    lab.py          JupyterLite, with the notebooks that run in a browser
    summary.py      llms.txt: each page with its first sentence
    stage.py        all sources in one folder
    __main__.py     Sphinx

The hand-written pages, style and scripts are in ``docs/``.
"""

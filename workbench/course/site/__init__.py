"""Static pages from what the checkout holds: ``make site``. Nothing is executed, and nothing of the network is needed.

::

    links.py        previous, next, lesson ↔ exercises ↔ solutions: in every notebook, and on the pages
    pictures.py     an SVG that follows the theme of a page; a player's picture, ready to be played
    notebooks.py    an executed notebook → one that Sphinx can read
    reference.py    pages of the API and of the benchmarks
    stage.py        all sources in one folder
    __main__.py     Sphinx

The pages' own texts, style and scripts lie in ``site/``.
"""

"""Lessons in a browser, with nothing installed: the cells of a page run in the page, by Python as WebAssembly.

======================  ================================================================================
``session.py``          runs cells there: output, the last value, errors with the line of the cell
``kernel.py``           the same for a notebook in JupyterLite
``threads.py``          threads, each with a stack of WebAssembly: under Python's own ``threading``
``sockets.py``          sockets between them
``pictures.py``         SVGs within a page, in its theme
``files.py``            what a site needs for it: Pyodide's files, and the part of this package that runs
``docs/_static/live``   the page's own part: editor, buttons, the worker in which Python runs
======================  ================================================================================
"""

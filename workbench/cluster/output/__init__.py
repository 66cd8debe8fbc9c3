"""What ranks print in a ``%%px`` cell, shown while they print it: equal text once, other text by rank.

::

    engines ──messages──> collected.py   one screen.py for each rank: lines, carriage returns, a limit of bytes
                              │
                          rows.py        which ranks have which lines and pictures: equal ones together
                              │
                          as_text.py, as_html.py, as_data.py      a terminal, any notebook, our JupyterLab extension
                              │
                          shown.py       puts it below the cell, again and again until the cell has ended

``px.py`` has the magics that use this.
"""

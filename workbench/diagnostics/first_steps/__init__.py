"""``workbench run --check``: the first steps of a script, watched on every rank, and the known mistakes in them.

::

    rank:      begin ─► recorder ◄─ torch_steps, keras_steps, writes     what happened, a line of JSON each
    launcher:  report ─► mistakes (compares ranks), script (reads text)   what is wrong, and in which line

The script is not changed, and no message is sent: each rank writes down what it sees, and the launcher compares it when
all have ended. Loops are cut short, so that what comes after an epoch is seen as well.
"""

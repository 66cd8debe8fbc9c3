"""``workbench convert``: a training script for one process, or for another library, becomes one for N ranks.

A conversion has three parts: facts about the script (:mod:`~workbench.convert.script`, and a folder for each
framework), a list of edits, and a transformer that makes the edits (:mod:`~workbench.convert.edits`). What
is not understood stays, below a comment that says what to decide.
"""

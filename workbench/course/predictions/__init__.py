"""Predict, lock, discover, explain: a guess is stored before the lesson shows the fact, and is shown with it.

::

    predict("03.bytes", "How many bytes does each of 4 ranks send to reduce 8 MB?", choices=["2 MB", "8 MB", "12 MB"])
    ...                             # the cell that tells
    reveal("03.bytes", "12 MB", "2(n - 1)/n · 8 MB = 12 MB: the ring, whatever n is.")

A guess may be changed until it is told, and no more then. Guesses are kept beside the exercises, in
``.workbench/progress.json``; ``progress()`` and ``report()`` show them. They give no points: a wrong guess is worth as
much as a right one, if it was made.
"""

from __future__ import annotations

from workbench.course.predictions.ask import guess, predict, reveal

__all__ = ["guess", "predict", "reveal"]

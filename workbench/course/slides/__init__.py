"""Slides from the lessons: one HTML file each, which needs no network and no server.

On the screen a slide has what is to be seen: a heading, lists, tables, figures, short code with its output. The whole
text of the lesson, and what the lesson says to the instructor, are its notes. Printed, the same file is the hand-out:
each slide with its text.
"""

from __future__ import annotations

from workbench.course.slides.deck import Slide, deck, page

__all__ = ["Slide", "deck", "page"]

"""Slides to lecture from: one HTML file for each lesson, which needs no network and no server.

A deck is a text of its own, ``lessons/slides/NN_name.md``: titles that are sentences, pictures, a little code,
questions and then their answers; the lesson's text is in the notes. Printed, the same file is the hand-out: each slide
with its notes. :mod:`workbench.course.slides.deck` says how one is written.
"""

from __future__ import annotations

from workbench.course.slides.deck import Lesson, Slide, complaints, deck, page

__all__ = ["Lesson", "Slide", "complaints", "deck", "page"]

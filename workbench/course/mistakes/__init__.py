"""Usual mistakes, by exercise: the lessons whose tasks' files have no room for them."""

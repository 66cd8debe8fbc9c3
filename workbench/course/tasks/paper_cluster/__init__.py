"""Lesson 16: a cluster that nobody here has, computed. Functions judged by their properties."""

"""Lessons 10, 11, 13 and 14: training scripts to convert, to repair and to write."""

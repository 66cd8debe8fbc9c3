"""Exercises about what starts the ranks of a job."""

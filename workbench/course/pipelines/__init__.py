"""Lesson 20's pipelines: a schedule is played on the simulator's virtual clock, and drawn."""

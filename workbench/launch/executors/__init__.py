"""Ranks in the executors of another engine: Spark's tasks, Ray's actors."""

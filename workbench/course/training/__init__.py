"""A training script on N ranks: recorded, compared with one process, timed."""

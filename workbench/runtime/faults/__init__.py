"""Which rank is missing, and why."""

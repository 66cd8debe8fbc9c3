"""What is on which rank, seen from a notebook: ``doctor()``, ``who_has("x")`` and ``fingerprint(model)``."""

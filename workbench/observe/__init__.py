"""What happened, and what is where: the timeline, ``who_has("x")`` and ``fingerprint(model)``."""

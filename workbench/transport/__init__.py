"""Where bytes move. The protocols are in ``core/backend/``, what chooses one in ``select.py``."""

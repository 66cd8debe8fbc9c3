"""One gradient on its way through the real code (lesson 21).

Read in this order: ``places`` (the functions that it passes), ``trace`` (which of their lines run for it, and on which
thread), ``source`` (these lines, shown), ``picture`` (the way, drawn).
"""

"""One gradient on its way through the real code (lesson 21).

Read in this order: ``places`` (the functions that it passes), ``trace`` (which of their lines run for it, and on which
thread), ``source`` (these lines, shown), ``event`` (what the timeline knows of it),
``picture`` (the way, drawn). ``records`` are snapshots for the exercises.
"""

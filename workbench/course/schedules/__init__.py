"""A schedule of one's own: which parts of the gradients travel together, and which of them goes first (lesson 16).

Read in this order: ``messages`` (what a schedule is), ``played`` (what a step takes with it), ``bound`` (what no
schedule can beat), ``on_ranks`` (the same schedule on ranks that run), ``picture`` (a step, drawn).
"""

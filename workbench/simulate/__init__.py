"""What a training step takes on n ranks, by discrete events: from the real algorithms and the real fusion planner.

Read in this order: ``machines`` (hosts and wires), ``schedule`` (what an algorithm sends, timed), ``models`` (layers),
``steps`` (a training step), ``published`` (the figures of 512 GPUs), ``levels`` and ``ideas`` (what would beat them).
"""

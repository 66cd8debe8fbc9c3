"""What a training step takes on n ranks, by discrete events: from the real algorithms and the real fusion planner.

Read in this order: ``machines`` (hosts and wires), ``schedule`` (an algorithm's messages, timed), ``models`` (layers),
``steps`` (a training step), ``published`` (the figures of 512 GPUs).
"""

"""What a training step takes on n ranks, by discrete events: from the real algorithms and the real fusion planner.

Read in this order: ``machines`` (racks, hosts, wires), ``schedule`` (what an algorithm sends, timed), ``algorithms``
(all of them beside their formulas), ``models`` (layers), ``delays`` (stragglers, the coordinator), ``steps`` (a step of
training), ``published`` (the figures of 512 GPUs), ``levels`` and ``ideas`` (what would beat them), ``servers`` and
``held_out`` (figures that nothing was fitted to, and what misses). ``export/`` writes a step for other tools.
"""

"""What the ranks that run measure, for a prediction of others.

Read in this order: ``links`` (reductions), ``spans`` (a step), ``contention`` (both at once), ``trials`` (both as a
job does), ``measure`` (the verb).
"""

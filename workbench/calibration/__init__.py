"""What the ranks that run measure, for a prediction of others.

In this order: ``links`` (reductions), ``spans`` (a step), ``contention`` (both at once), ``trials``, ``measure``.
"""

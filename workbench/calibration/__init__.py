"""From a measurement on the ranks that run to a prediction for others.

Read in this order: ``fit`` (constants of a link, from times), ``links`` (the times), ``contention`` (computing and
reducing on the same cores), ``prediction`` (both public verbs, ``workbench.measure`` and ``workbench.predict``).
"""

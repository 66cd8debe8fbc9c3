"""``workbench class up`` and ``down``: JupyterHub for a class on one machine, with what keeps its learners apart.

JupyterHub, its proxy and its culler of idle servers do what they are good at, in an environment of their own; here is
what a class needs besides: learners with limits, a join link, the lessons in each home, and the work collected.
"""

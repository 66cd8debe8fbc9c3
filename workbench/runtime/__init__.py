"""How a tensor travels: from a submitted request to a finished handle.

Read in this order: ``messages`` (what is said), ``coordinator`` (who decides), ``cache`` and ``fusion``
(how a steady step stays cheap), ``control`` (how it is said), ``pending`` and ``handle`` (what the
caller holds), ``engine`` (the whole flow on one screen). Nothing here imports a framework or MPI.
"""

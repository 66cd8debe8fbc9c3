"""Jobs in a Ray cluster.

==============  ======================================================================
``places.py``   where ranks are that Ray has started, and what they must know to meet
``fixed.py``    a job whose ranks are actors
``calls.py``    calls on all of them, and what went wrong
``offers.py``   executors on Ray's nodes, which come and go, for an elastic job
==============  ======================================================================
"""

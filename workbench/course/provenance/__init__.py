"""Where a wrong number comes from: inputs are coded, so that each sum tells which ranks and chunks are in it.

::

    coding.py    each chunk of each rank has a digit of its own: a sum is read back from its digits
    trace.py     what stands in the learner's variables after each of his lines
    steps.py     the run as steps of messages, and the first change that is wrong
    words.py     "rank 0 twice, rank 2 missing"
    picture.py   a grid of ranks and chunks for each step, for the player
    explain.py   all of it together, for check() and show()
"""

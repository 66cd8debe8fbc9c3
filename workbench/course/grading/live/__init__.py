"""For exercises whose function trains a model: models and optimizers cannot travel, so ranks do.

Each rank is a process of its own, with the function and without a judge. Between the ranks is the judge: their
collectives are made in its process, with the arrays that they send. It believes nothing that a rank says about itself
until its own run, ``replay.py``, has come to the same weights.
"""

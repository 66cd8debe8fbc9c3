"""The answers that stand in for a learner where there is none: when notebooks are built or tested.

Each is plausible and most are wrong, for a reader of the finished notebook should see what a guess is worth. There is
one entry for each ``predict`` in the lessons; their names are also the list of what ``progress()`` knows.
"""

from __future__ import annotations

from workbench.course.predictions.question import Answer

GIVEN: dict[str, Answer] = {
    # 00 Quickstart
    # 01 Ranks in your notebook
    # 02 Collectives by hand
    # 03 Ring allreduce
    # 04 Parallel SGD
    # 05 Sharding the data
    # 06 The distributed optimizer
    # 07 Tensor fusion
    # 08 Is it faster?
    # 09 Large batches
    # 10 Convert a script
    # 11 Find the bug
    # 12 GPUs and nodes
    # 13 Capstone
    # 14 Every framework
    # 15 A rank dies
    # 16 512 GPUs on paper
    # 17 The same job on every engine
    # 18 Sharding further
    # 19 Talking less
    # 20 Cutting the model
    # 21 Follow one gradient
}

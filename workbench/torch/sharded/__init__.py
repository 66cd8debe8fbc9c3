"""ZeRO: each rank keeps its shard of the optimizer's state, of the gradients, and of the parameters, too.

Rajbhandari et al. 2020, arXiv:1910.02054. With n ranks, P bytes of parameters and an optimizer that keeps k·P bytes of
state, between two steps a rank holds, and in each step it sends:

=========================  ==============================  ===================
``sharded=``               bytes held                      bytes sent
=========================  ==============================  ===================
``False``                  P + P + k·P                     2(n - 1)/n · P
``"optimizer"`` (stage 1)  P + P + k·P/n                   2(n - 1)/n · P
``"gradients"`` (2)        P + (P + k·P)/n                 2(n - 1)/n · P
``"parameters"`` (3)       (P + P + k·P)/n                 3(n - 1)/n · P
=========================  ==============================  ===================

What a rank has alone is of use only if all ranks have come equally far. So all that travels bears the number of its
model, and before each update the ranks compare how many updates and backward passes each has made
(``consistency.py``): where they differ, all of them raise, and no sum is put together of parts that do not belong
together.

From the bottom: in all stages the wrapped optimizer steps on this rank's shards, with the state of these alone
(``shards.py``). ``stage1.py`` shards the buckets in which gradients are anyway. For stages 2 and 3
``flat_parameter.py`` lays parameters one behind the other and moves them, and ``backward.py`` says when; ``stage2.py``
is a step, and ``stage3.py`` unshards a layer's parameters for its forward and backward pass. ``optimizer.py`` is what
users call.
"""

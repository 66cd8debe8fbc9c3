"""ZeRO, stages 2 and 3: each rank keeps its part of the gradients, and of the parameters, too.

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
model, and before each update the ranks compare how many updates and backward passes each has made (``alike.py``): where
they differ, all of them raise, and no sum is put together of parts that do not belong together.

Stage 1 is :mod:`workbench.torch.sharded.stage1`. Here, from the bottom: ``flat.py`` lays parameters one behind the
other and moves them; ``backward.py`` says when; ``stage3.py`` gathers a layer's parameters for its forward and
backward pass; ``slices.py`` is what the wrapped optimizer steps on; ``steps.py`` is a step, and ``optimizer.py`` what
users call.
"""

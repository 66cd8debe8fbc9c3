"""From a parameter's ``.grad`` to the engine, and back: one :class:`~workbench.torch.gradients.source.GradientSource`.

Which one is chosen when a DistributedOptimizer is made:

==========================  ===================================================================================
source                      for
==========================  ===================================================================================
``DenseGradients``          most: in buckets, or by name with PowerSGD and groups; ``dense.py``
``LocalGradients``          one rank, which has nobody to average with; ``local.py``
``AdasumGradients``         ``op=Adasum``: changes of weights are combined, not gradients; ``optimizer/adasum.py``
``TopKGradients``           ``Compression.topk``: indices and values are gathered; ``top_k.py``
``DeferredGradients``       ``overlap_forward=True``; ``optimizer/deferred.py``
``Stage1Gradients``        ``sharded="optimizer"``, ZeRO 1; ``sharded/stage1.py``
``ShardGradients``          exact mode: by logical shard; ``elastic/shard_gradients.py``
==========================  ===================================================================================

ZeRO 2 and 3 come the same way, see :mod:`workbench.torch.sharded`.
"""

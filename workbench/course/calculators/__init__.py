"""Two calculators with sliders: the time of a training step, and the memory of a rank.

::

    from workbench.course.calculators import explore

    explore.step()      # lessons 07 and 16: n, α, β, gradients, bucket and computing → lanes, exposed time, efficiency
    explore.memory()    # lesson 18: parameters, optimizer, precision, n, batch → bytes a rank, plain and sharded

Each is a pure function (``steps``, ``memory``), a picture of what it returns (``lanes``, ``stacks``), and sliders
around both (``panel``, ``explore``). Without a kernel three settings stay as a picture. ``measured_step`` and
``measured_memory`` hold the formulas against a training on the ranks that run.
"""

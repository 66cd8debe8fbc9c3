"""Two calculators with sliders: the time of a training step, and the memory of a rank.

::

    from workbench.course.calculators import explore

    explore.step()      # lessons 07 and 16: n, α, β, gradients, bucket and computing → lanes, exposed time, efficiency
    explore.memory()    # lesson 18: parameters, optimizer, precision, n, batch → bytes a rank, plain and sharded

Each is a pure function (``steps``, ``memory``), a picture of what it returns (``lanes``, ``stacks``), and sliders
around both (``panel``, ``explore``). Without a kernel three settings stay as a picture. Both are held against trainings
that are started for it on ranks of this machine, from a notebook or a script::

    from workbench.course.calculators import measured_memory, measured_step

    measured_step.measured(ranks=2, buckets=(0, 4 << 20, 64 << 20))
    measured_memory.measured(ranks=2, ways=["plain", "optimizer", "gradients", "parameters"])

Measured times and the system's bytes differ from run to run: such a cell has the tag ``nbval-ignore-output``.
"""

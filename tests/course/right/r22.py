"""Right solutions of lesson 22 that are unlike the official ones."""

from __future__ import annotations

from statistics import median

import numpy as np

from workbench.course import six_steps as finder
from workbench.course.tasks.t22_two_hours import SCRIPT, SLIDES


def by_reading():  # The tool of the lesson.
    return {step: lines[0] for step, lines in finder.find(SCRIPT).items()}
def as_numbers_of_numpy():  # Integers of numpy.
    return dict(zip(range(1, 7), np.array([10, 17, 14, 18, 22, 24]), strict=True))
def in_another_order():  # A dict has no order.
    return {6: 24, 5: 22, 4: 18, 3: 14, 2: 17, 1: 10}
def by_a_search():  # By words.
    words = ["hvd.init", "// hvd", "local_rank", "DistributedSampler(", "broadcast_p", "DistributedOptimizer"]
    lines = SCRIPT.splitlines()
    return {step: next(k for k, line in enumerate(lines, 1) if word in line) for step, word in enumerate(words, 1)}
def by_numpy(alone, together):  # With numpy's functions.
    one, many = (np.median(np.max(ranks, axis=0)[1:]) for ranks in (alone, together))
    return one / many
def as_an_array(alone, together):  # An array without dimensions.
    return np.array(by_numpy(alone, together))
def by_loops(alone, together):  # Step by step.
    found = []
    for ranks in (alone, together):
        slowest = []
        for epoch in range(1, len(ranks[0])): slowest.append(max(rank[epoch] for rank in ranks))
        found.append(median(slowest))
    return found[0] / found[1]
def without_the_first(alone, together):  # The first epoch is cut off before all else.
    cut = [[seconds[1:] for seconds in ranks] for ranks in (alone, together)]
    one, many = (median(map(max, zip(*ranks, strict=True))) for ranks in cut)
    return one / many
def with_srun():  # srun knows how many ranks to start.
    return (
        SLIDES.replace("–", "-")
        .replace("#SBATCH -c 6", "#SBATCH -c 6\n#SBATCH --ntasks-per-node=4")
        .replace("mpirun -n 8", ". ./env.sh\nsrun")
    )
def all_tasks():  # -n counts all processes.
    return (
        SLIDES.replace("–", "-")
        .replace("#SBATCH -N 2", "#SBATCH -N 2 -n 8")
        .replace("mpirun", 'eval "$(workbench env)"\nmpirun')
    )
def long_options():  # Long names, several on a line.
    return """#!/bin/bash
# two nodes
#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=6
#SBATCH --gpus-per-node=4
#SBATCH --time=02:00:00

source env.sh
mpiexec -n 8 python test_horovod.py
"""
def by_workbench_run():  # No mpirun and nothing to prepare.
    return """#!/usr/bin/env bash
#SBATCH -N2
#SBATCH --ntasks-per-node 4
#SBATCH --gpus-per-node a100:4
#SBATCH -t 2:00:00

workbench run --as-horovod python test_horovod.py
"""
def ready_by(line):  # A cluster has modules or an environment of conda, instead of env.sh.
    return lambda: long_options().replace("source env.sh", line)
def gpus_by(line):  # Slurm has four ways to ask for GPUs.
    return lambda: by_workbench_run().replace("--gpus-per-node a100:4", line)
RIGHT = {
    "22.six_steps": [by_reading, as_numbers_of_numpy, in_another_order, by_a_search],
    "22.speed_up": [by_numpy, as_an_array, by_loops, without_the_first],
    "22.batch_script": [with_srun, all_tasks, long_options, by_workbench_run]
    + [gpus_by(line) for line in ("--gres=gpu:4", "--gres gpu:a100:4", "--gpus-per-task=1", "--gpus 8", "-G8")]
    + [ready_by(line) for line in ("module load horovod/0.28 openmpi", "ml load horovod", "conda activate horovod")],
}

"""A batch script for Slurm, from the description of a job."""

from __future__ import annotations

import dataclasses
import shlex
from math import ceil

from workbench.cli.jobs.description import JobDescription, fixed_size, quantity
from workbench.launch.site import Site
from workbench.launch.slurm import batch

_MEBIBYTE = 2**20


def wanted(job: JobDescription) -> batch.Wanted:
    """What to ask Slurm for: a node for each worker. The image and Kubernetes' names have no meaning there.

    Example:
        >>> wanted(JobDescription(["python", "train.py"], np=4, slots=2, gpus=1, memory="2Gi")).options
        ('--mem=4096M',)
    """
    mebibytes = ceil(quantity(job.memory) * job.slots / _MEBIBYTE)
    return batch.Wanted(
        nodes=job.workers,
        tasks_per_node=job.slots,
        gpus_per_node=job.gpus * job.slots,
        cpus_per_task=job.cpus,
        time=job.time,
        name=job.name,
        options=(f"--mem={mebibytes}M",),
    )


def script(job: JobDescription, site: Site | None = None, activate: str = "") -> str:
    """The batch script; the job's queue is Slurm's partition.

    Args:
        job: the job.
        site: where to ask; by default nowhere in particular.
        activate: the file that activates this Python's environment.

    Raises:
        LaunchError: the job is elastic.
    """
    fixed_size(job, "batch script")
    site = site or Site()
    site = dataclasses.replace(site, partition=job.queue) if job.queue else site
    exports = [f"{name}={text}" for name, text in job.env.items()]
    text = batch.script(wanted(job), site, activate, job.command)
    # sbatch hands the environment on, and so do srun and the launcher.
    lines = "".join(f"export {shlex.quote(each)}\n" for each in exports)
    head, mark, run = text.rpartition("# The ranks go to")
    return head + lines + mark + run

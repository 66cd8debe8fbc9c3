"""Right answers of lesson 17 that are unlike the official ones."""

from __future__ import annotations

import re
from typing import Any


def with_dashes() -> Any:
    """The options as they are written."""
    questions = ("starts", "finds", "slots", "replaces")
    rows = {
        "ssh": ("agent by ssh", "the user", "-H", "nobody"),
        "slurm": ("agent by srun", "Slurm", "--ntasks-per-node", "nobody"),
        "mpijob": ("agent by ssh", "the operator", "--slots-per-host", "the launcher"),
        "jobset": ("torchrun", "DNS", "PET_NPROC_PER_NODE", "nobody"),
    }
    return {engine: dict(zip(questions, row, strict=True)) for engine, row in rows.items()}


def by_question() -> Any:
    """Answered question by question; with one more engine."""
    answers = {
        "starts": ["agent by ssh", "agent by srun", "agent by ssh", "torchrun"],
        "finds": ["the user", "Slurm", "the operator", "DNS"],
        "slots": ["h", "NTASKS-PER-NODE", "slots-per-host", "pet_nproc_per_node"],
        "replaces": ["nobody", "nobody", "the launcher", "nobody"],
    }
    found: dict[str, dict[str, str]] = {"spark": {}}
    for question, row in answers.items():
        for engine, answer in zip(("ssh", "slurm", "mpijob", "jobset"), row, strict=True):
            found.setdefault(engine, {})[question] = answer
    return found


def torchrun_asked_first(env: Any) -> Any:
    """Slurm last, and only in a step; torchrun before mpiexec."""
    if "RANK" in env and "WORLD_SIZE" in env:
        return int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"])
    if "PMI_RANK" in env:
        return int(env["PMI_RANK"]), int(env["PMI_SIZE"]), int(env.get("MPI_LOCALRANKID", 0))
    if "SLURM_STEP_NUM_TASKS" in env:
        return int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_LOCALID"])
    return 0, 1, 0


def first_that_fits(env: Any) -> Any:
    """A loop over texts; what is missing is an exception."""
    for names in ("RANK WORLD_SIZE LOCAL_RANK", "PMI_RANK PMI_SIZE MPI_LOCALRANKID"):
        try:
            return tuple(int(env[name]) for name in names.split())
        except KeyError:
            continue
    slurm = [env.get(name) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")]
    return (0, 1, 0) if None in slurm else tuple(map(int, slurm))


def by_regular_expression(pods: Any, service: Any) -> Any:
    """The number by a pattern; sorted at the end."""
    found = []
    for pod in pods:
        if pod["role"] != "worker" or not pod["ready"] or pod["deleted"]:
            continue
        (number,) = re.findall(r"(\d+)$", pod["name"])
        slots = max(1, int(pod["limits"].get("nvidia.com/gpu", "0")))
        found.append((int(number), f"{pod['name']}.{service}:{slots}"))
    return [line for _, line in sorted(found)]


def as_a_generator(pods: Any, service: Any) -> Any:
    """Sorted first, printed one by one."""
    for pod in sorted(pods, key=lambda one: int(one["name"].split("-")[-1])):
        takes = pod["role"] == "worker" and pod["ready"] and not pod["deleted"]
        if takes:
            gpus = int(pod["limits"].get("nvidia.com/gpu") or 0)
            yield f"{pod['name']}.{service}:{gpus if gpus else 1}"


def by_the_rest(n: Any, failed_at: Any, engine: Any, commit_every: Any, checkpoint_every: Any) -> Any:
    """What is done again is the rest of a division, and the step itself."""
    if engine == "elastic" and n >= 2:
        return 1, failed_at % commit_every + 1
    return n, (failed_at % checkpoint_every if checkpoint_every else failed_at) + 1


def by_looking_back(n: Any, failed_at: Any, engine: Any, commit_every: Any, checkpoint_every: Any) -> Any:
    """Goes back step by step to where something was kept."""
    alone = engine != "elastic" or n < 2
    every, begin = (checkpoint_every if alone else commit_every), failed_at
    while begin > 0 and (not every or begin % every):
        begin -= 1
    return [n if alone else 1, failed_at - begin + 1]


RIGHT = {
    "17.table": [with_dashes, by_question],
    "17.who_am_i": [torchrun_asked_first, first_that_fits],
    "17.discover": [by_regular_expression, as_a_generator],
    "17.recovery": [by_the_rest, by_looking_back],
}

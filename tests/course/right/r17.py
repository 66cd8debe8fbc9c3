"""Right answers of lesson 17 that are unlike the official ones."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np


def with_dashes():  # The options as they are written.
    questions = ("starts", "finds", "slots", "replaces")
    rows = {
        "ssh": ("agent by ssh", "the user", "-H", "nobody"),
        "slurm": ("agent by srun", "Slurm", "--ntasks-per-node", "nobody"),
        "mpijob": ("agent by ssh", "the operator", "--slots-per-host", "the launcher"),
        "jobset": ("torchrun", "DNS", "PET_NPROC_PER_NODE", "nobody"),
    }
    return {engine: dict(zip(questions, row, strict=True)) for engine, row in rows.items()}
def by_question():  # Answered question by question; with one more engine.
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
def torchrun_asked_first(env):  # Slurm last, and only in a step; torchrun before mpiexec.
    if "RANK" in env and "WORLD_SIZE" in env: return int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"])
    if "PMI_RANK" in env: return int(env["PMI_RANK"]), int(env["PMI_SIZE"]), int(env.get("MPI_LOCALRANKID", 0))
    if "SLURM_STEP_NUM_TASKS" in env:
        return int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_LOCALID"])
    return 0, 1, 0
def first_that_fits(env):  # A loop over texts; what is missing is an exception.
    for names in ("RANK WORLD_SIZE LOCAL_RANK", "PMI_RANK PMI_SIZE MPI_LOCALRANKID"):
        try:
            return tuple(int(env[name]) for name in names.split())
        except KeyError:
            continue
    slurm = [env.get(name) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")]
    return (0, 1, 0) if None in slurm else tuple(map(int, slurm))
def by_regular_expression(pods, service):  # The number by a pattern; sorted at the end.
    found = []
    for pod in pods:
        if pod["role"] != "worker" or not pod["ready"] or pod["deleted"]: continue
        (number,) = re.findall(r"(\d+)$", pod["name"])
        slots = max(1, int(pod["limits"].get("nvidia.com/gpu", "0")))
        found.append((int(number), f"{pod['name']}.{service}:{slots}"))
    return [line for _, line in sorted(found)]
def as_a_generator(pods, service):  # Sorted first, printed one by one.
    for pod in sorted(pods, key=lambda one: int(one["name"].split("-")[-1])):
        takes = pod["role"] == "worker" and pod["ready"] and not pod["deleted"]
        if takes:
            gpus = int(pod["limits"].get("nvidia.com/gpu") or 0)
            yield f"{pod['name']}.{service}:{gpus if gpus else 1}"
def by_the_rest(n, failed_at, engine, commit_every, checkpoint_every):
    """What is done again is the rest of a division, and the step itself."""
    if engine == "elastic" and n >= 2: return 1, failed_at % commit_every + 1
    return n, (failed_at % checkpoint_every if checkpoint_every else failed_at) + 1
def by_looking_back(n, failed_at, engine, commit_every, checkpoint_every):
    """Goes back step by step to where something was kept."""
    alone = engine != "elastic" or n < 2
    every, begin = (checkpoint_every if alone else commit_every), failed_at
    while begin > 0 and (not every or begin % every): begin -= 1
    return [n if alone else 1, failed_at - begin + 1]
class _Answer(NamedTuple):
    starts: str
    finds: str
    slots: str
    replaces: str
def from_a_table():  # A named tuple for a row.
    rows = {
        "ssh": _Answer("agent by ssh", "the user", "hosts", "nobody"),
        "slurm": _Answer("agent by srun", "Slurm", "ntasks_per_node", "nobody"),
        "mpijob": _Answer("agent by ssh", "the operator", "slots-per-host", "the launcher"),
        "jobset": _Answer("torchrun", "DNS", "PET_NPROC_PER_NODE", "nobody"),
    }
    return {engine: row._asdict() for engine, row in rows.items()}
def by_a_table_of_names(env):  # A KeyError says that it was another launcher.
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        try:
            return tuple(int(env[name]) for name in names)
        except KeyError:
            continue
    return 0, 1, 0
def by_the_size(env):
    """The variable with the size says which launcher it was; srun is asked last. numpy makes the numbers."""
    if "WORLD_SIZE" in env: found = env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]
    elif "PMI_SIZE" in env: found = env["PMI_RANK"], env["PMI_SIZE"], env["MPI_LOCALRANKID"]
    elif "SLURM_STEP_NUM_TASKS" in env: found = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"], env["SLURM_LOCALID"]
    else: found = ("0", "1", "0")
    return np.array(found).astype(int)
def by_or(env):  # The first of three that is there, with a default; a batch script's own number is 0 in any case.
    rank = env.get("RANK") or env.get("PMI_RANK") or env.get("SLURM_PROCID") or 0
    size = env.get("WORLD_SIZE") or env.get("PMI_SIZE") or env.get("SLURM_STEP_NUM_TASKS") or 1
    local = env.get("LOCAL_RANK") or env.get("MPI_LOCALRANKID") or env.get("SLURM_LOCALID") or 0
    return int(rank), int(size), int(local)
def filled_in_later():  # What most have in common first, then the exceptions.
    table = {
        engine: {"starts": "agent by ssh", "replaces": "nobody"} for engine in ("ssh", "slurm", "mpijob", "jobset")
    }
    table["slurm"]["starts"] = "agent by srun"
    table["jobset"].update(starts="torchrun", finds="DNS", slots="pet_nproc_per_node")
    table["mpijob"] |= {"finds": "the operator", "slots": "--slots-per-host", "replaces": "the launcher"}
    table["ssh"].update(finds="the user", slots="--hosts")
    table["slurm"].update(finds="Slurm", slots="--ntasks-per-node ")
    return table
def filtered_and_sorted(pods, service):  # filter, sorted and map.
    hosts = filter(lambda pod: pod["role"] == "worker" and pod["ready"] and not pod["deleted"], pods)
    hosts = sorted(hosts, key=lambda pod: int(pod["name"].rpartition("-")[2]))
    return [
        "{}.{}:{}".format(pod["name"], service, max(1, int(pod["limits"].get("nvidia.com/gpu", "1")))) for pod in hosts
    ]
def by_number(pods, service):  # A dict from the number to the line; a tuple at the end.
    lines = {}
    for pod in pods:
        if pod["role"] != "worker": continue
        if pod["deleted"] or not pod["ready"]: continue
        slots = 1
        if "nvidia.com/gpu" in pod["limits"] and int(pod["limits"]["nvidia.com/gpu"]) > 0:
            slots = int(pod["limits"]["nvidia.com/gpu"])
        lines[int(pod["name"].split("-")[-1])] = f"{pod['name']}.{service}:{slots}"
    return tuple(lines[number] for number in sorted(lines))
def played_step_by_step(n, failed_at, engine, commit_every, checkpoint_every):  # Plays the steps until the failure.
    committed = saved = 0
    for done in range(1, failed_at + 1):
        if done % commit_every == 0: committed = done
        if checkpoint_every and done % checkpoint_every == 0: saved = done
    if engine == "elastic" and n > 1: return 1, failed_at - committed + 1
    return n, failed_at - saved + 1
def by_integer_division(n, failed_at, engine, commit_every, checkpoint_every):
    """The last multiple; early returns, numpy's numbers."""
    survives = engine == "elastic" and n >= 2
    every = commit_every if survives else checkpoint_every
    started = 1 if survives else n
    if every == 0: return started, 1 + failed_at
    last = failed_at // every * every
    return np.array([started, 1 + failed_at - last])
RIGHT = {
    "17.table": [with_dashes, by_question, from_a_table, filled_in_later],
    "17.who_am_i": [torchrun_asked_first, first_that_fits, by_a_table_of_names, by_the_size, by_or],
    "17.discover": [by_regular_expression, as_a_generator, filtered_and_sorted, by_number],
    "17.recovery": [by_the_rest, by_looking_back, played_step_by_step, by_integer_division],
}

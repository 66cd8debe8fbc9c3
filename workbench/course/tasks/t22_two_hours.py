"""Lesson 22, two hours alone: the six steps in a script, the speed-up of a run, and a batch script."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any

from workbench.course import six_steps as steps
from workbench.course.judging.task import PlainTask, stated

SCRIPT = """\
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd
from course import evaluate, load_digits, make_model

BATCH_SIZE, EPOCHS = 96, 4

hvd.init()
verbose = hvd.rank() == 0
torch.manual_seed(42 + hvd.rank())
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())

train, test = load_digits()
per_step = BATCH_SIZE // hvd.size()
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train, batch_size=per_step, sampler=sampler)

model = make_model()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
if verbose:
    print(evaluate(model, test))
"""

SLIDES = """\
#!/bin/sh –l
#SBATCH -c 6
#SBATCH -N 2
#SBATCH -p gpu
#SBATCH --gpus-per-node 4
#SBATCH -t 120
#SBATCH --export=ALL

mpirun –n 8 python test_horovod.py
"""
"""The session's batch script, letter by letter as its slide has it."""


def six_steps() -> Any:
    """Return a dict: for each of the six steps, 1 to 6, the number of the line of SCRIPT that takes it."""
    ### BEGIN SOLUTION
    return {1: 10, 2: 17, 3: 14, 4: 18, 5: 22, 6: 24}
    ### END SOLUTION


def speed_up(alone: Any, together: Any) -> Any:
    """Return how many times as fast an epoch of the run together is as an epoch of the run alone.

    Both are lists with, for each rank, the list of its epochs' seconds. An epoch ends when its slowest rank is done.
    The first epoch does not count; the median of the others does: statistics.median.
    """
    ### BEGIN SOLUTION
    one, many = (
        statistics.median([max(seconds) for seconds in zip(*ranks, strict=True)][1:]) for ranks in (alone, together)
    )
    return one / many
    ### END SOLUTION


def batch_script() -> Any:
    """Return the text of the slides' batch script, put right: Slurm starts 8 ranks, each with a GPU of its own.

    They are on 2 nodes with 4 GPUs each, for two hours at most.
    """
    ### BEGIN SOLUTION
    return """\
#!/bin/sh -l
#SBATCH -c 6
#SBATCH -N 2
#SBATCH -p gpu
#SBATCH --gpus-per-node 4
#SBATCH --ntasks-per-node 4
#SBATCH -t 120
#SBATCH --export=ALL

eval "$(workbench env)"
mpirun -n 8 python test_horovod.py
"""
    ### END SOLUTION


# --- 22.six_steps -----------------------------------------------------------------------------------------


def _step(number: int, function: Callable[..., Any]) -> str:
    found = function()
    if not isinstance(found, dict):
        kind = "None. Is there a return?" if found is None else f"of type {type(found).__name__}, expected a dict"
        return f"your result is {kind}"
    if number not in found:
        return f"step {number} is not in your result. Its keys are {_keys(found)}"
    line, right, text = found[number], steps.find(SCRIPT)[number], SCRIPT.splitlines()
    if isinstance(line, bool) or not hasattr(line, "__index__"):
        return f"step {number}: your result is {line!r}. Return the number of a line"
    if line in right:
        return ""
    if not 1 <= int(line) <= len(text):
        return f"step {number}: your result is line {line}; the script has the lines 1 to {len(text)}"
    other = next((step for step, lines in steps.find(SCRIPT).items() if line in lines), None)
    takes = f"takes step {other}, {steps.STEPS[other]!r}" if other else "takes none of the six steps"
    return f"step {number}: your result is line {line}, {text[int(line) - 1].strip()!r}. That line {takes}"


def _keys(found: dict[Any, Any]) -> str:
    return ", ".join(map(repr, found)) or "none"


def _properties() -> Iterator[Callable[[Callable[..., Any]], str]]:
    for number, title in steps.STEPS.items():
        holds = partial(_step, number)
        holds.__doc__ = f"step {number}: {title[0].lower()}{title[1:]}"
        yield holds


# --- 22.speed_up ------------------------------------------------------------------------------------------

_ALONE = [[4.0, 2.0, 2.1, 2.2]]
_RUNS = [
    (_ALONE, [[3.0, 1.0, 1.1, 1.2], [3.1, 1.1, 1.0, 1.1]]),
    ([[9.0, 3.0, 3.0, 3.0]], [[8.0, 1.0, 1.0, 1.0], [8.0, 1.5, 1.5, 1.5], [8.0, 1.2, 1.2, 1.2]]),
    ([[5.0, 1.0, 1.0, 9.0, 1.2]], [[5.0, 0.5, 0.6, 0.5, 4.0], [5.0, 0.6, 0.5, 0.7, 0.5]]),
    ([[2.0, 1.0]], [[2.0, 0.5], [2.0, 2.0]]),
]


def _slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    return [max(each) for each in zip(*ranks, strict=True)]


def _wanted(alone: Any, together: Any) -> float:
    return statistics.median(_slowest(alone)[1:]) / statistics.median(_slowest(together)[1:])


def _fast(runs: Sequence[tuple[Any, Any]], function: Callable[..., Any]) -> str:
    for alone, together in runs:
        mine, wanted = function([[*a] for a in alone], [[*b] for b in together]), _wanted(alone, together)
        if mine is None:
            return "your result is None. Is there a return?"
        try:
            value = float(mine)
        except (TypeError, ValueError):
            return f"your result is of type {type(mine).__name__}, expected a number"
        if not math.isclose(value, wanted, rel_tol=1e-9):
            return f"alone = {alone}, together = {together}: your result is {value:.4g}, expected {wanted:.4g}"
    return ""


# --- 22.batch_script --------------------------------------------------------------------------------------

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"
_LONG = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "p": "partition", "G": "gpus"}


def _options(text: str) -> dict[str, str]:
    """What the #SBATCH lines say, by the options' long names. Slurm reads those before the first command."""
    found: dict[str, str] = {}
    for line in text.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        for word in re.finditer(r"(?:(?<=\s)--([\w-]+)[= ]\s*(\S+)|(?<=\s)-(\w)[= ]?\s*(\S+))", _asked(line)):
            found[word[1] or _LONG.get(word[3], word[3])] = word[2] or word[4]
    return found


def _asked(line: str) -> str:
    """What a line asks of Slurm: ``##SBATCH`` and ``# SBATCH`` are comments."""
    return line.removeprefix("#SBATCH") if line.startswith("#SBATCH") else ""


def _of_text(holds: Callable[[str], str]) -> Callable[[Callable[..., Any]], str]:
    """A property of the text that a function returns."""

    @wraps(holds)
    def of_function(function: Callable[..., Any]) -> str:
        text = function()
        if text is None:
            return "your result is None. Is there a return?"
        return (
            holds(text) if isinstance(text, str) else f"your result is of type {type(text).__name__}, expected a text"
        )

    return of_function


def _count(text: str) -> int:
    """How many ranks the last line starts; 0 if it says nothing."""
    found = re.search(
        r"^\s*(?:mpirun|mpiexec|srun|horovodrun|workbench run)\b.*?\s--?(?:n|np|ntasks)[ =]?(\d+)", text, re.MULTILINE
    )
    return int(found[1]) if found else 0


@_of_text
def plain_dashes(text: str) -> str:
    """Shell and Slurm can read it."""
    for number, line in enumerate(text.split("\n"), 1):
        is_comment = line.startswith("#") and not line.startswith(("#!", "#SBATCH"))
        if bad := "" if is_comment else next((each for each in line if not " " <= each <= "~" and each != "\t"), ""):
            what = f"{bad!r} is a typographic dash (U+{ord(bad):04X}); a shell wants '-'"
            if bad not in _DASHES:
                what = "it ends in CRLF, as on Windows" if bad == "\r" else f"{bad!r} is no plain character"
                what += "; Slurm and the shell want plain text, and a newline after each line"
            return f"line {number}, {line.rstrip()!r}: {what}"
    if not re.match(r"#!/(usr/)?bin/(env )?(ba)?sh\b", text):
        first = (text.splitlines() or [""])[0]
        return f"line 1 is {first!r}: sbatch wants a line that names the shell, such as #!/bin/sh -l"
    return ""


@_of_text
def before_the_first_command(text: str) -> str:
    """All options stand before the first command."""
    lines = text.splitlines()
    command = next((k for k, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    late = next((k for k, line in enumerate(lines) if line.startswith("#SBATCH") and k > command), None)
    if late is not None:
        return f"line {late + 1}, {lines[late]!r}: Slurm reads no option behind the first command, line {command + 1}"
    return ""


@_of_text
def asks_for_the_nodes(text: str) -> str:
    """2 nodes with 4 GPUs each, for two hours."""
    found = _options(text)
    if found.get("nodes") != "2":
        return f"--nodes is {found.get('nodes', 'not there')}. The job needs 2"
    asked, gpus = _gpus_per_node(found)
    if gpus != 4:
        return f"{asked}, so a node gives {gpus:g} GPUs. The job needs 4: --gpus-per-node 4"
    limit = found.get("time", "")
    if limit not in ("120", "120:00", "2:00:00", "02:00:00", "0-2", "0-02:00", "0-02:00:00"):
        return f"the time limit is {limit or 'not there'}; two hours are -t 120, in minutes, or 2:00:00"
    return ""


def _gpus_per_node(found: dict[str, str]) -> tuple[str, float]:
    """What a script asks for, in one of Slurm's four ways, and how many GPUs of a node that is."""
    ranks = (
        _number(found.get("ntasks-per-node", found.get("tasks-per-node", ""))) or _number(found.get("ntasks", "")) / 2
    )
    ways = {"gpus-per-node": 1.0, "gres": 1.0, "gpus-per-task": ranks, "gpus": 1 / 2}
    for name, share in ways.items():
        if name in found:
            return f"--{name} is {found[name]}", share * _number(found[name].rpartition(":")[2])
    return "--gpus-per-node is not there", 0


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


@_of_text
def as_many_ranks_as_gpus(text: str) -> str:
    """8 ranks, 4 on each node."""
    found, n = _options(text), _count(text)
    launcher = re.search(r"^\s*(mpirun|mpiexec|srun|horovodrun|workbench run)\b", text, re.MULTILINE)
    if not launcher:
        return "no line starts ranks: mpirun -n 8 python test_horovod.py"
    each = found.get("ntasks-per-node", found.get("tasks-per-node", ""))
    all_of_them = found.get("ntasks", "")
    if not each and all_of_them != "8":
        return (
            "Slurm is not told how many processes a node may start: without --ntasks-per-node it is one, for -c counts "
            "the cores of a process"
        )
    if each and each != "4":
        return f"--ntasks-per-node is {each}: each node has 4 GPUs, so 4 ranks"
    if n and n != 8:
        return f"{launcher[1]} starts {n} ranks: 2 nodes with 4 GPUs each are 8"
    if not n and launcher[1] in ("mpirun", "mpiexec", "horovodrun"):
        return f"{launcher[1]} is not told how many ranks to start: -n 8"
    return ""


@_of_text
def finds_the_programs(text: str) -> str:
    """The nodes find mpirun, Python and Horovod."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    before = re.split(r"^\s*(?:mpirun|mpiexec|srun|horovodrun)\b", text, maxsplit=1, flags=re.MULTILINE)[0]
    ready = (
        r"workbench env|^\s*(?:source|\.) +\S*(?:env\.sh|activate)|^\s*workbench run .*--as-horovod"
        r"|^\s*(?:module|ml) +(?:load|add) +\w|^\s*(?:conda|mamba|micromamba) +activate\b"
    )
    if not re.search(ready, before, re.MULTILINE):
        return (
            "nothing makes the shell ready: `source env.sh` was typed at the prompt. A batch script needs "
            'eval "$(workbench env)" before the ranks start'
        )
    if not re.search(r"\bpython3? +\S*test_horovod\.py\b", text):
        return "python test_horovod.py is not started"
    return ""


TASKS = [
    PlainTask(
        "22.six_steps",
        "find the six steps in a script",
        six_steps,
        properties=list(_properties()),
    ),
    PlainTask(
        "22.speed_up",
        "how much faster is it",
        speed_up,
        probes=lambda: _RUNS,
        properties=stated(
            ("Two ranks against one.", lambda f: _fast(_RUNS[:1], f)),
            ("Other numbers of ranks and epochs.", lambda f: _fast(_RUNS[1:], f)),
        ),
    ),
    PlainTask(
        "22.batch_script",
        "put the slides' batch script right",
        batch_script,
        properties=[
            plain_dashes,
            before_the_first_command,
            asks_for_the_nodes,
            as_many_ranks_as_gpus,
            finds_the_programs,
        ],
    ),
]

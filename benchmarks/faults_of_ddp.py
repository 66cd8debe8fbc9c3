"""Faults at random in trainings of torch.distributed: ``python benchmarks/faults_of_ddp.py --number 300 --seed 1``.

Each draw is a training (DDP, ``fully_shard`` in one and in two dimensions, tensor parallel, both, a pipeline), 2 to 4
ranks, a fault, the rank that makes it, the step and the place. The script knows nothing of the workbench;
``workbench run --as-ddp`` starts it on real ranks, or over Gloo ``--watch``. Each rank compares every sum with its
closed form, and every loss with that of a model that it trains alone on all data. What is judged:

1. Who is told, is told of the rank that differs, and of no other.
2. The line: in the text, a rank waits where its own traceback ends; an exception has the line that raised it; ranks
   that disagree stand in the lines of the fault.
3. Seconds from the fault to the last rank that is told. Where nothing is wrong, as with a late rank, nobody is told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).resolve().parent.parent / "tests" / "helpers"
MODULES = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining")
LIMIT_S = 60.0
LATE_S = 5.0
STEPS = 6

HEAD = """
import copy, json, os, signal, sys, time, traceback
import torch
import torch.distributed as dist
from torch import nn

GUILTY, STEP, FOLDER = {guilty}, {step}, {folder!r}
log = open(os.path.join(FOLDER, os.environ["RANK"] if "RANK" in os.environ else str(os.getpid())), "a", buffering=1)

def say(**what):
    print(json.dumps(what | dict(rank=dist.get_rank(), at=time.monotonic())), file=log)

def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.Tanh())

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
start = nn.ModuleList([block(8, 12), block(12, 12), block(12, 12), nn.Linear(12, 4)])
data = torch.randn({steps}, 12, 8)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = copy.deepcopy(start)
    def forward(self, x, leave_out=None):
        for i, each in enumerate(self.blocks):
            if i != leave_out:
                x = each(x)
        return x

def check(found, wanted):
    assert torch.allclose(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-9, atol=1e-12), (found, wanted)

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
odd = rank == GUILTY
alone = Net()
alone_sgd = torch.optim.SGD(alone.parameters(), lr=0.1)
groups = [dist.new_group(list(range(n))) for _ in range(2)]
two = [GUILTY, (GUILTY + 1) % n]
pair = dist.new_group(two)

def train_alone(step, mine):
    with torch.no_grad():
        before = alone(mine).square().mean()
    alone_sgd.zero_grad()
    alone(data[step]).square().mean().backward()
    alone_sgd.step()
    return before
"""
DATA_PARALLEL = """
def train(step, leave_out=None):
    mine = data[step]{part}
    sgd.zero_grad()
    loss = model(mine, leave_out).square().mean()
    loss.backward()
    sgd.step()
    check(loss.detach(), train_alone(step, mine))
"""
SGD = "\nsgd = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)"
SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = Net()
"""
SHARD = """
for each in (*model.blocks, model):
    fully_shard(each, mesh={mesh})"""
CUT = """
parallelize_module(model, {mesh}, {{"blocks.0.0": ColwiseParallel(), "blocks.1.0": RowwiseParallel()}})"""
PIPELINE = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
owner = [i * n // 4 for i in range(4)]
model = nn.Sequential(*(each for each, own in zip(copy.deepcopy(start), owner) if own == rank))
stage = PipelineStage(model, rank, n, torch.device("cpu"))
schedule = {schedule}(stage, n_microbatches=4, loss_fn=lambda found, _: found.square().mean())
sgd = torch.optim.SGD(model.parameters(), lr=0.1)

def train(step, leave_out=None):
    sgd.zero_grad()
    losses = []
    given = (data[step],) if rank == 0 else ()
    schedule.step(*given, **(dict(target=data[step], losses=losses) if rank == n - 1 else {{}}))
    sgd.step()
    loss = train_alone(step, data[step])
    if rank == n - 1:
        check(torch.stack(losses).mean().detach(), loss)
"""
TAIL = """
def main():
    for step in range({steps}):
        {before}
        total = torch.full((4,), rank + 1.0)
        dist.all_reduce(total)
        check(total, torch.full((4,), n * (n + 1) / 2))
        {between}
        train(step{argument})

try:
    main()
except BaseException as error:
    say(told=traceback.format_exc(), kind=type(error).__name__)
    raise
say(end=True)
"""
TRAININGS = {
    "ddp": "model = nn.parallel.DistributedDataParallel(Net())" + SGD + DATA_PARALLEL.format(part="[rank::n]"),
    "fsdp": SHARDED + SHARD.format(mesh='init_device_mesh("cpu", (n,))') + SGD + DATA_PARALLEL.format(part="[rank::n]"),
    "hsdp": SHARDED
    + SHARD.format(mesh='init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))')
    + SGD
    + DATA_PARALLEL.format(part="[rank::n]"),
    "tp": SHARDED + CUT.format(mesh='init_device_mesh("cpu", (n,))') + SGD + DATA_PARALLEL.format(part=""),
    "fsdp+tp": SHARDED
    + 'mesh = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("dp", "tp"))'
    + CUT.format(mesh='mesh["tp"]')
    + SHARD.format(mesh='mesh["dp"]')
    + SGD
    + DATA_PARALLEL.format(part="[rank // 2 :: n // 2]"),
    "gpipe": PIPELINE.format(schedule="ScheduleGPipe"),
    "1f1b": PIPELINE.format(schedule="Schedule1F1B"),
}
PIPELINES = frozenset({"gpipe", "1f1b"})


@dataclass(frozen=True)
class Fault:
    """What one rank, ``GUILTY``, does unlike the others.

    Args:
        code: at a place of the loop; ``{now}`` says that it happens. Lines that end with ``# fault`` are its lines.
        judge: how it is to be told: "left", "raised", "killed", "busy", "differs" or, where all is right, "fine".
        trainings: in which it can be made; all if empty.
        argument: of ``train()``, in place of code.
        places: in the loop.
        watched: as ``judge``, over Gloo, where that differs: it would add wrong numbers.
    """

    code: str
    judge: str = "differs"
    trainings: frozenset[str] = frozenset()
    argument: str = ""
    places: tuple[str, ...] = ("before", "between")
    watched: str = ""


def guilty(code: str) -> str:
    """Code of the guilty rank alone, in the step of the fault."""
    return f"if odd and step == STEP:\n    say(fault=True)\n    {code}"


def all_ranks(code: str) -> str:
    """Code of all ranks; the guilty one is ``odd``."""
    return f"if step == STEP:\n    say(fault=True)\n    {code}"


X = "torch.ones(3)"
FAULTS = {
    "one batch less": Fault(guilty("break  # fault"), "left"),
    "a batch left out": Fault(guilty("continue"), places=("between",)),
    "raises": Fault(guilty('raise ValueError("planted")  # fault'), "raised"),
    "is killed": Fault(guilty("os.kill(os.getpid(), signal.SIGKILL)  # fault"), "killed"),
    "exits": Fault(guilty("sys.exit(3)  # fault"), "left"),
    "ends hard": Fault(guilty("os._exit(3)  # fault"), "killed"),
    "is late": Fault(guilty("time.sleep(1.2)"), "fine"),
    "is busy": Fault(guilty("while True: time.sleep(0.05)  # fault"), "busy"),
    "shape": Fault(all_ranks("dist.all_reduce(torch.ones(3 + odd))  # fault")),
    "dtype": Fault(all_ranks("dist.all_reduce(torch.ones(3, dtype=torch.float32 if odd else None))  # fault")),
    "op": Fault(all_ranks(f"dist.all_reduce({X}, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)  # fault")),
    "verb": Fault(all_ranks(f"dist.broadcast({X}, 0) if odd else dist.all_reduce({X})  # fault")),
    "barrier": Fault(all_ranks(f"dist.barrier() if odd else dist.all_reduce({X})  # fault")),
    "root": Fault(all_ranks(f"dist.broadcast({X}, (GUILTY + odd) % n)  # fault")),
    "gathered sizes": Fault(
        all_ranks("dist.all_gather_into_tensor(torch.empty(n * (3 + odd)), torch.ones(3 + odd))  # fault")
    ),
    "scattered sizes": Fault(
        all_ranks("dist.reduce_scatter_tensor(torch.empty(2 + odd), torch.ones(n * (2 + odd)))  # fault")
    ),
    "splits": Fault(all_ranks("dist.all_to_all_single(torch.empty(2 * n), torch.ones((2 + odd) * n))  # fault")),
    "gather's root": Fault(
        all_ranks(
            f"to = (GUILTY + odd) % n\n    dist.gather({X}, [torch.empty(3)] * n if rank == to else None, to)  # fault"
        )
    ),
    "a barrier alone": Fault(guilty("dist.barrier()  # fault")),
    "a sum alone": Fault(guilty("dist.all_reduce(torch.ones(5))  # fault")),
    "order of groups": Fault(
        all_ranks(f"for group in groups[:: -1 if odd else 1]:\n        dist.all_reduce({X}, group=group)  # fault")
    ),
    "another group": Fault(all_ranks(f"dist.all_reduce({X}, group=groups[odd])  # fault")),
    "a group alone": Fault(
        all_ranks(
            f"if odd: dist.new_group([rank])\n    dist.all_reduce({X}, group=dist.new_group(list(range(n))))  # fault"
        )
    ),
    "shape in a pair": Fault(all_ranks("if rank in two: dist.all_reduce(torch.ones(3 + odd), group=pair)  # fault")),
    "a pair without one": Fault(all_ranks(f"if rank == two[1]: dist.all_reduce({X}, group=pair)  # fault")),
    "other members": Fault(
        all_ranks(f"dist.all_reduce({X}, group=dist.new_group([rank] if odd else list(range(n))))  # fault")
    ),
    "nobody waits": Fault(all_ranks("dist.all_reduce(torch.ones(3 + odd), async_op=True)"), "fine", watched="differs"),
    "is interrupted": Fault(guilty("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)  # fault"), "left"),
    "is ended": Fault(guilty("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)  # fault"), "killed"),
    "leaves the group": Fault(guilty("dist.destroy_process_group()"), "left"),
    "send alone": Fault(guilty(f"dist.send({X}, (rank + 1) % n)  # fault")),
    "recv alone": Fault(guilty(f"dist.recv({X}, (rank + 1) % n)  # fault")),
    "recv from nobody": Fault(guilty(f"dist.recv({X})  # fault")),
    "a circle of sends": Fault(all_ranks(f"dist.send({X}, (rank + 1) % n)  # fault")),
    "other tags": Fault(
        all_ranks(
            f"if odd: dist.send({X}, (rank + 1) % n, tag=1)  # fault\n"
            f"    if rank == (GUILTY + 1) % n: dist.recv({X}, GUILTY, tag=2)  # fault"
        )
    ),
    "a message's size": Fault(
        all_ranks(
            f"if odd: dist.send(torch.ones(4), (rank + 1) % n)  # fault\n"
            f"    if rank == (GUILTY + 1) % n: dist.recv({X}, GUILTY)  # fault"
        )
    ),
    "a layer left out": Fault(
        guilty("pass"), trainings=frozenset({"ddp", "fsdp"}), argument=", 2 if odd and step == STEP else None"
    ),
    "microbatches": Fault(
        "if step == STEP and odd:\n    say(fault=True)\n"
        "    schedule = type(globals()['schedule'])(stage, 6, loss_fn=lambda f, _: f.square().mean())\n"
        "    globals().update(schedule=schedule)",
        trainings=PIPELINES,
    ),
}


@dataclass(frozen=True)
class Draw:
    """One drawn run."""

    training: str
    fault: str
    ranks: int
    guilty: int
    step: int
    place: str

    @classmethod
    def of(cls, dice: random.Random, fault: str = "") -> Draw:
        """What the dice say; the kind of fault may be given."""
        fault = fault or dice.choice(list(FAULTS))
        training = dice.choice(sorted(FAULTS[fault].trainings or TRAININGS))
        ranks = 4 if training in ("hsdp", "fsdp+tp") else dice.choice([2, 3, 4])
        place = dice.choice(FAULTS[fault].places)
        return cls(training, fault, ranks, dice.randrange(ranks), dice.randrange(1, STEPS - 1), place)

    def script(self, folder: Path) -> str:
        """The text of the user's file."""
        fault = FAULTS[self.fault]
        places = {"before": "pass", "between": "pass"} | {self.place: fault.code.replace("\n", "\n        ")}
        head = HEAD.format(guilty=self.guilty, step=self.step, folder=str(folder), steps=STEPS)
        tail = TAIL.format(steps=STEPS, argument=fault.argument, **places)
        return head + TRAININGS[self.training] + tail


@dataclass
class Verdict:
    """How a run went: seconds until all were told, and what was wrong with that."""

    seconds: float
    wrong: list[str]
    text: str = ""


_ROW = re.compile(r"^  ranks? (\d+(?:, \d+)*): (.*)$", re.MULTILINE)
_LINE = re.compile(r"in train\.py, line (\d+)")
_FRAME = re.compile(r'File ".*train\.py", line (\d+)')
_BLAMED = re.compile(r"Ranks? ([\d, ]+) (?:is|are|raised|has left|was lost)|misses ranks? ([\d, ]+)")


def judge(
    draw: Draw, script: str, said: list[dict[str, Any]], launcher: str, code: int | None, watched: bool = False
) -> Verdict:
    """Compare what ranks were told with what was planted."""
    how, odd = (watched and FAULTS[draw.fault].watched) or FAULTS[draw.fault].judge, draw.guilty
    lines = {i for i, line in enumerate(script.splitlines(), 1) if line.endswith("# fault")}
    told = {each["rank"]: each for each in said if "told" in each}
    # What torch itself finds wrong is raised on the rank that differs, and tells the others of it.
    others = {r: each for r, each in told.items() if r != odd or (how == "differs" and "workbench" in each["told"])}
    began = [each["at"] for each in said if "fault" in each]
    shown = "\n".join(f"--- rank {rank}\n{each['told']}" for rank, each in sorted(told.items())) + f"\n--- {launcher}"
    if how == "fine":
        ended = sum("end" in each for each in said)
        return Verdict(0.0, [] if code == 0 and ended == draw.ranks else ["was not right"], shown)
    wrong = list(_complaints(how, odd, lines, told, others, launcher))
    if code is None:
        wrong.append("hung")
    seconds = max((each["at"] for each in others.values()), default=0.0) - max(began, default=0.0)
    if seconds > LATE_S:
        wrong.append("late")
    return Verdict(seconds, wrong, shown)


def _complaints(
    how: str, odd: int, lines: set[int], told: dict[int, Any], others: dict[int, Any], launcher: str
) -> Iterator[str]:
    if not others:
        yield "nobody was told"
    stands = {rank: [int(line) for line in _FRAME.findall(own(each["told"]))][-1:] for rank, each in told.items()}
    for rank, each in others.items():
        text = each["told"]
        message = text[len(own(text)) :]
        if each["kind"] in ("AssertionError", "IndexError", "KeyError", "TypeError", "AttributeError"):
            yield f"rank {rank}: {text.splitlines()[-1]}"
        blamed = {int(r) for names in _BLAMED.findall(message) for r in re.findall(r"\d+", "".join(names))}
        if how in ("left", "raised", "killed") and odd not in blamed:
            yield f"rank {rank} is not told of rank {odd}"
        if how == "raised" and not lines & {int(line) for line in _FRAME.findall(message)}:
            yield f"rank {rank} is not told the line that raised"
        rows = {int(r): row for ranks, row in _ROW.findall(message) for r in ranks.split(", ")}
        for other, row in rows.items():
            line = _LINE.search(row)
            if line and stands.get(other) and int(line[1]) != stands[other][0]:
                yield f"rank {rank} is told that rank {other} waits in line {line[1]}, not {stands[other][0]}"
        if how == "differs" and not _tells_apart(rows, odd) and odd not in blamed:
            yield f"rank {rank} is not told what rank {odd} does"
    if how == "busy" and not any(f"line {line}" in launcher for line in lines):
        yield "the busy line is not shown"
    if how == "differs" and lines and not any(stands.get(r, [0])[0] in lines for r in told):
        yield f"no rank stands in a line of the fault {sorted(lines)}: {stands}"


def own(text: str) -> str:
    """A traceback without the error's text."""
    match = re.search(r"^[\w.]+(?:Error|Exception|Exit)\b", text, re.MULTILINE)
    return text[: match.start()] if match else text


def _tells_apart(rows: dict[int, str], odd: int) -> bool:
    return odd in rows and all(rows[odd] != row for rank, row in rows.items() if rank != odd)


def run(draw: Draw, python: str, folder: Path, how: str = "--as-ddp") -> Verdict:
    """Run it on real ranks, over our backend (``how`` is ``--as-ddp``) or over Gloo (``--watch``)."""
    from running import Runner

    where = folder / f"{len(list(folder.iterdir()))}"
    (where / "said").mkdir(parents=True)
    script = draw.script(where / "said")
    (where / "train.py").write_text(script)
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    words = ("-m", "workbench.cli.main", "run", "-np", str(draw.ranks), how, python, str(where / "train.py"))
    env = limits if FAULTS[draw.fault].judge == "busy" else {}
    job = Runner(where).python(*words, deadline_s=LIMIT_S, **env)
    said = [json.loads(line) for each in (where / "said").iterdir() for line in each.read_text().splitlines()]
    verdict = judge(draw, script, said, job.out(0) + job.err(0), job.code, how == "--watch")
    verdict.wrong += [f"left behind: {each}" for each in job.left]
    return verdict


def main() -> None:
    """Draw, run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", default="", choices=["", *FAULTS])
    parser.add_argument("--watch", dest="how", action="store_const", const="--watch", default="--as-ddp")
    parser.add_argument("--show", action="store_true", help="all texts, not only those of wrong ones")
    args = parser.parse_args()
    sys.path.append(str(HELPERS))
    from fork_server import TORCH, ForkServer

    # It is read where torch is imported, which is here for all ranks.
    os.environ["WORKBENCH_WATCH" if args.how == "--watch" else "WORKBENCH_C10D"] = "1"
    server = ForkServer((*TORCH, *MODULES))
    seconds, bad = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.first, args.first + args.number):
            draw = Draw.of(random.Random(f"{args.seed}.{number}"), args.fault)
            verdict = run(draw, server.python, Path(folder), args.how)
            if FAULTS[draw.fault].judge != "fine":
                seconds.append(verdict.seconds)
            bad += bool(verdict.wrong)
            print(f"{number} {draw}: {verdict.seconds:.1f} s {verdict.wrong or 'right'}", flush=True)
            if verdict.wrong or args.show:
                print(verdict.text, flush=True)
    server.close()
    middle = statistics.median(seconds) if seconds else 0.0
    right = 100 * (1 - bad / args.number)
    print(f"{args.number} runs, {right:.1f} % right; median {middle:.2f} s, longest {max(seconds, default=0.0):.1f} s")


if __name__ == "__main__":
    main()

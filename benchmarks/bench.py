"""Every peer in the same run: ``make bench`` (quick), ``make bench-full``, or ``python benchmarks/bench.py``.

Starts each worker with each number of ranks, one after the other, and writes ``bench-quick`` (or ``bench-full``) as
``.json``, with all that was measured, as ``.md`` and as ``.svg``, anew after each worker. The exit code is 1 if a
worker failed, gave a wrong sum, or passed its deadline; the others are measured all the same. Times are shown, never
judged; where all is committed they are added to ``history.csv``. What is measured, and how to read it: ``README.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import elsewhere
import history
import machine
import turns
from figures import Case, quartiles, ratios
from picture import draw
from report import Result, markdown

from workbench.errors import LaunchError

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Plan:
    """What to run.

    Args:
        kind: the files' name.
        ranks: how many, run after run.
        deadline_s: of one worker.
        total_s: of all; a worker for which there is no time left is written down as failed.
        words: worker → its command lines' words.
    """

    kind: str
    ranks: tuple[int, ...]
    deadline_s: float
    total_s: float
    words: dict[str, tuple[str, ...]]


def sizes(*exponents: int) -> str:
    """Powers of two, as words."""
    return " ".join(str(1 << exponent) for exponent in exponents)


SMOKE = Plan(
    "smoke",
    (2,),
    60.0,
    240.0,
    {
        "collectives": (f"--bytes {sizes(12, 16)} --rounds 2 --repeats 2",),
        "verbs": (f"--bytes {sizes(12)} --rounds 2 --repeats 2",),
        "many": ("--tensors 20 --floats 100 --rounds 2 --repeats 2",),
        "training": ("--models cnn --rounds 2 --seconds 0.01",),
        "idle": ("workbench --seconds 0.2 --steps 3", "gloo --seconds 0.2"),
    },
)
QUICK = Plan(
    "quick",
    (2,),
    300.0,  # a Horovod in an environment of its own doubles the time
    900.0,
    {
        "collectives": (f"--bytes {sizes(12, 20, 24, 26)} --rounds 9",),
        "verbs": ("--rounds 5",),
        "many": ("--rounds 9 --repeats 3",),
        "training": ("--rounds 5 --seconds 1",),
        "idle": ("workbench --seconds 5", "gloo --seconds 5"),
    },
)
FULL = Plan(
    "full",
    (1, 2, 4),
    900.0,
    3500.0,
    {
        "collectives": (f"--bytes {sizes(12, 14, 16, 18, 20, 22, 24, 26, 28)} --rounds 21",),
        "verbs": ("--rounds 11",),
        "many": ("--rounds 21",),
        "training": ("--rounds 11 --seconds 1.5",),
        "idle": ("workbench --seconds 20 --steps 200", "gloo --seconds 20"),
    },
)

FRAMEWORKS = Plan(
    "frameworks",
    (2,),
    600.0,
    3000.0,
    {
        "torch_training": ("--rounds 5 --seconds 0.5",),
        "tensorflow_training": ("--models cnn", "--models mlp --seconds 0.6"),
        "jax_training": ("--models cnn", "--models mlp --seconds 0.6"),
        "keras_training": (
            *("--backend tensorflow --models cnn", "--backend tensorflow --models mlp"),
            *("--backend jax --models cnn", "--backend jax --models mlp --rounds 7"),
            *("--backend torch", "--backend torch --loop"),
        ),
    },
)

RIVALS = Plan(
    "rivals",
    (2,),
    1200.0,
    3000.0,
    {
        "rivals": (
            *(f"--models {model} --rounds 7" for model in ("cnn", "resnet18", "mlp", "gpt")),
            *(f"--models {model} --compiled --seconds 0.6" for model in ("cnn", "mlp")),
        ),
    },
)


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", dest="plan", action="store_const", const=FULL, default=QUICK)
    which.add_argument("--frameworks", dest="plan", action="store_const", const=FRAMEWORKS, help="beside their own")
    which.add_argument("--rivals", dest="plan", action="store_const", const=RIVALS, help="beside what people choose")
    which.add_argument("--smoke", dest="plan", action="store_const", const=SMOKE, help="does it run at all?")
    parser.add_argument("--ranks", metavar="1,2,4", help="instead of the plan's")
    parser.add_argument("--only", choices=[*QUICK.words, *FRAMEWORKS.words, *RIVALS.words], help="one worker")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR")
    keep = parser.add_mutually_exclusive_group()
    what = "add to the history, though not all is committed or measured"
    keep.add_argument("--history", nargs="?", type=Path, const=history.FILE, metavar="FILE", help=what)
    keep.add_argument("--no-history", action="store_true", help="add nothing to it")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything and write the files; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended then, too
    args = options(argv)
    plan: Plan = args.plan
    ranks = tuple(int(each) for each in args.ranks.split(",")) if args.ranks else plan.ranks
    where = elsewhere.place(os.environ)
    begun, others, load_before = time.monotonic(), machine.Others(), machine.load()
    everything: dict[str, Any] = {"kind": plan.kind}
    results: list[Result] = []
    for n in ranks:
        for worker in [args.only] if args.only else plan.words:
            for words in plan.words.get(worker) or (FRAMEWORKS.words | RIVALS.words)[worker]:
                left_s = plan.total_s - (time.monotonic() - begun)
                results.append(measure(n, worker, words.split(), min(plan.deadline_s, left_s), where))
                about = machine.about() | {"load_before": load_before, "load_after": machine.load()}
                mpi = next((each["mpi"] for each in results if "mpi" in each), "?")
                about |= {"others_percent": others.percent(), "mpi": mpi, "minutes": minutes(begun)}
                settings = {"ranks": ranks, "deadline_s": plan.deadline_s, "words": plan.words}
                everything |= {"machine": about, "settings": settings}
                everything["results"] = [with_summary(result) for result in results]
                write(args.out, plan.kind, everything, results)
    print(markdown(plan.kind, everything["machine"], results))
    remember(args, plan.kind, everything["machine"], results)
    return int(any("failed" in result for result in results))


def minutes(begun: float) -> float:
    """Since then."""
    return round((time.monotonic() - begun) / 60, 1)


def write(folder: Path, kind: str, everything: dict[str, Any], results: Sequence[Result]) -> None:
    """All three files."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"bench-{kind}"
    stem.with_suffix(".json").write_text(json.dumps(everything, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(kind, everything["machine"], results))
    draw(results, stem.with_suffix(".svg"))


def remember(args: argparse.Namespace, kind: str, about: dict[str, Any], results: Sequence[Result]) -> None:
    """Add the run to the history if that was asked for, or if it is a whole one of a commit."""
    commit, clean = history.head()
    whole = kind != "smoke" and not args.only and not args.ranks and args.out == HERE / "results"
    path = args.history or (history.FILE if clean and whole and not args.no_history else None)
    if path is None:
        print("Not added to the history: not a whole run of what is committed (--history adds it).", file=sys.stderr)
        return
    new = history.lines(kind, about, results, commit if clean else f"{commit}+")
    history.append(path, new)
    print(f"{len(new)} lines added to {path} for {commit}", file=sys.stderr)


def last_line(output: str) -> Any:
    """What rank 0 said in JSON; a library may have said something, too."""
    return json.loads([line for line in output.splitlines() if line.startswith('{"')][-1])


def measure(ranks: int, worker: str, words: list[str], deadline_s: float, where: elsewhere.Place | None) -> Result:
    """One run of one worker, and of Horovod's beside it if that is in an environment of its own."""
    print(f"$ mpiexec -n {ranks} python benchmarks/{worker}.py {' '.join(words)}", file=sys.stderr, flush=True)
    if deadline_s <= 0:
        return {"section": worker, "ranks": ranks, "failed": "There was no time left for it."}
    others, begun = machine.Others(), time.monotonic()
    try:
        script = HERE / f"{worker}.py"
        if where and worker in elsewhere.SECTIONS:
            ours, theirs = elsewhere.run(where, ranks, script, words, deadline_s)
            result = elsewhere.merged(last_line(ours), last_line(theirs))
        else:
            result = last_line(children.run(ranks, script, words, deadline_s))
    except (children.ChildError, LaunchError, OSError, ValueError, IndexError) as error:
        if rival := failed_rival(error, words):
            left_s = deadline_s - (time.monotonic() - begun)
            result = measure(ranks, worker, [*words, "--without", rival], left_s, where)
            return result | {"absent": result.get("absent", {}) | {rival: f"ended the ranks: {reason(error)}"}}
        return {"section": worker, "ranks": ranks, "failed": f"{error}"}
    result["others_percent"] = others.percent()
    return result


def failed_rival(error: Exception, words: Sequence[str]) -> str | None:
    """The rival whose turn it was; a failure of ours is a failure of the run."""
    name = turns.last_turn(getattr(error, "err", ""))
    return None if name is None or name in words or name.startswith(("workbench", "independent")) else name


def reason(error: Exception) -> str:
    """The last words of the ranks that sound like one."""
    said = [line.strip() for line in getattr(error, "err", "").splitlines() if re.search(r"Error|what\(\)", line)]
    return said[-1][:200] if said else "it was not done in time"


def with_summary(result: Result) -> dict[str, Any]:
    """The result, and beside the seconds of every round what the text is made of."""
    summed: dict[str, Any] = dict(result)
    if "cases" in result:
        summed["cases"] = [case | {"summary": summary(case, result["ours"])} for case in result["cases"]]
    return summed


def summary(case: Case, ours: Sequence[str]) -> dict[str, Any]:
    """Quartiles of each peer's seconds, and of its ratios to each of ours."""
    return {
        "seconds": {name: quartiles(values)._asdict() for name, values in case["seconds"].items()},
        "ratio_to": {
            mine: {name: ratio._asdict() for name, ratio in ratios(case["seconds"], mine).items()} for mine in ours
        },
    }


if __name__ == "__main__":
    sys.exit(main())

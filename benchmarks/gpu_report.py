"""Everything that only a GPU can show, in one run of some minutes: ``make bench-gpu``, or this script by itself.

Needs Python, numpy, torch, cupy and an NVIDIA GPU; no MPI, no set-up: a bare checkout will do. Each section runs in
processes of its own until its deadline; one that fails is written down as failed, and the rest goes on. Writes a JSON
file with the machine, the versions, the date, and each figure with its target, which lesson 12 shows, and a picture of
what a step costs, which the documentation shows. Both are written anew after each section, so that what stops the run
loses only the rest. First come the checks, some at a time; then what is timed, one after the other. The exit code is 1
if a section failed or a result was wrong; a target that is missed is told, and no failure. Without a GPU it says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # the package is that of this checkout, installed or not

import gpu_results as judge  # noqa: E402
from plain_ranks import CANCELLED, RanksError, run  # noqa: E402

from workbench.course import drawing  # noqa: E402
from workbench.course.training.measured import told  # noqa: E402
from workbench.transport.gpu.select import SHARING, dotted, has_driver  # noqa: E402

OUT, PICTURE = ROOT / "benchmarks" / "results" / "gpu-report.json", ROOT / "docs" / "pictures" / "gpu-report.svg"
WHOLE_S = 460.0  # deadline of everything
MOST_RANKS = 8
_AT_ONCE = 4  # checks
_LEAST_S = 5.0  # with less left a section is not begun
Run = Callable[..., list[Any]]


@dataclass(frozen=True)
class Section:
    """Something to run.

    Args:
        title: what it is.
        script: in the checkout.
        words: of its command line.
        results: makes figures of what the ranks print.
        ranks: how many.
        way: WORKBENCH_GPU_OPERATIONS.
        deadline_s: for it.
        timed: nothing else may run beside it.
    """

    title: str
    script: str
    words: tuple[str, ...]
    results: Callable[[Sequence[Any]], list[judge.Result]]
    ranks: int = 1
    way: str = "nccl"
    deadline_s: float = 60.0
    timed: bool = False


def plan(quick: bool, gpus: int) -> list[Section]:
    """What is run, the most important first: what the time does not suffice for is left out."""
    verbs, late, train = "tests/gpu/verbs.py", "tests/gpu/late.py", "benchmarks/gpu_training.py"
    steps = ("--rounds", "5", "--steps", "2", "--most", "64") if quick else ("--rounds", "15", "--steps", "4")
    texts = ("--model", "gpt", "--rounds", "5" if quick else "9", "--steps", "2", "--most", "64" if quick else "128")
    many = min(gpus, MOST_RANKS)
    whole = [
        Section("every verb, 1 rank, NCCL", verbs, (), judge.verbs, deadline_s=90.0),
        Section("every verb, 2 ranks, by way of the host", verbs, (), judge.verbs, 2, "staged", 90.0),
        Section("every verb, 2 ranks, NCCL", verbs, (), judge.verbs, 2, deadline_s=120.0),
        Section("late streams, 1 rank, NCCL", late, ("--rounds", "200" if quick else "1000"), judge.rounds),
        Section("training, 2 ranks, by way of the host", "tests/gpu/trains.py", (), judge.trained, 2, "staged"),
        Section("training, 2 ranks, NCCL", "tests/gpu/trains.py", (), judge.trained, 2),
        Section("late streams, 2 ranks, by way of the host", late, ("--rounds", "200"), judge.rounds, 2, "staged"),
    ]
    if not quick:
        whole.append(Section("long delays, 1 rank, NCCL", late, ("--leave-out", "nothing"), judge.rounds))
        for wait in ("ready", "done", "memory", "keep"):
            whole.append(Section(f"long delays, no wait '{wait}'", late, ("--leave-out", wait), judge.mutant))
    whole.append(Section("pack and unpack", "benchmarks/gpu_copy.py", steps[:2], judge.copies, timed=True))
    for title, words in (("ResNet-50", steps), ("GPT-2 small", texts)):
        for ranks in [1, many] if many > 1 else [1]:
            name = f"{title}, bf16 autocast, {ranks} rank{'s' * (ranks > 1)}"
            whole.append(Section(name, train, words, judge.training, ranks, deadline_s=120.0, timed=True))
    return whole


def absent(section: Section, machine: dict[str, Any]) -> str:
    """Why a section cannot be run here, or ""."""
    if section.way == "nccl" and not machine["nccl"]:
        return "cupy finds no NCCL"
    if section.way == "nccl" and section.ranks > machine["gpus"] and machine["nccl"] < SHARING:
        return f"the ranks share a GPU, which NCCL {machine['versions']['nccl']} cannot: version {dotted(SHARING)} can"
    return ""


def measure(
    machine: dict[str, Any],
    sections: Sequence[Section],
    start: Run,
    until: float,
    save: Callable[[list[dict[str, Any]]], object] = len,
) -> list[dict[str, Any]]:
    """Run the sections: first the checks, some of them at a time, then what is timed.

    Args:
        machine: what ``gpu_machine.py`` says.
        sections: in this order.
        start: as :func:`plain_ranks.run`.
        until: by ``time.monotonic()``; what has not begun by then is left out.
        save: called with what has been found so far.

    Returns:
        As :func:`one_section`, and what follows from several of them.
    """
    found: list[dict[str, Any]] = []
    timed = [section for section in sections if section.timed]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            checks = (section for section in sections if not section.timed)
            for one in pool.map(lambda section: one_section(machine, section, start, until), checks):
                found.append(one)
                save(found)
        except BaseException:
            CANCELLED.set()
            pool.shutdown(cancel_futures=True)
            raise
    for section in timed:
        found.append(one_section(machine, section, start, until))
        save(found)
    return found + compared(found)


def one_section(machine: dict[str, Any], section: Section, start: Run, until: float) -> dict[str, Any]:
    """Run one.

    Returns:
        Its title and ranks; either why it was left out (skipped); or its seconds, what the ranks said (found) and
        results; or how it failed (failed).
    """
    begun, one = time.monotonic(), {"section": section.title, "ranks": section.ranks}
    left_s = min(section.deadline_s, until - begun)
    if why := absent(section, machine) or ("" if left_s > _LEAST_S else "no time was left"):
        return one | {"skipped": why}
    print(f"$ {section.ranks} × {section.script} {' '.join(section.words)}", file=sys.stderr, flush=True)
    path, ways = ROOT / section.script, {"WORKBENCH_GPU_OPERATIONS": section.way}
    try:
        one["found"] = start(section.ranks, path, section.words, left_s, **ways)
        one["results"] = section.results(one["found"])
    except RanksError as error:
        one["failed"] = str(error)
    except Exception as error:  # noqa: BLE001 - a result of another shape must not end the whole run
        one["failed"] = f"{type(error).__name__}: {error}"
    return one | {"seconds": round(time.monotonic() - begun, 1)}


def compared(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One rank against all of them, for each model where both were measured."""
    made = []
    for title in ("ResNet-50", "GPT-2 small"):
        trainings = [one for one in found if one["section"].startswith(title) and "results" in one]
        if len(trainings) == 2:
            one, many = trainings
            results = judge.speedup(one["results"], many["results"], many["ranks"])
            name = f"{title}: 1 rank against {many['ranks']}"
            made.append({"section": name, "ranks": many["ranks"], "results": results, "seconds": 0.0})
    return made


def as_report(machine: dict[str, Any], sections: Sequence[dict[str, Any]], quick: bool) -> dict[str, Any]:
    """What is written."""
    about = {name: value for name, value in machine.items() if name not in ("versions", "problem", "nccl")}
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    head = {"kind": "gpu-report", "quick": quick, "date": date, "machine": about, "versions": machine["versions"]}
    return head | {"sections": list(sections)}


def picture(report: dict[str, Any]) -> str:
    """What a step costs more, by model and by who exchanges its gradients, as an SVG; "" if nothing was measured."""
    costs = {}
    for one in report["sections"]:
        for each in one.get("results", ()):
            who, found, _ = each["name"].partition(": over plain torch")
            if found:
                model, *_, ranks = one["section"].split(", ")
                costs[f"{model}, {ranks}: {who}"] = each["value"]
    title = f"What a training step costs more than with plain torch, {report['machine']['gpu']}, {report['date'][:10]}"
    return drawing.bars(costs, "%", title).svg if costs else ""


def went_wrong(report: dict[str, Any]) -> bool:
    """Did a section fail, or was a result wrong? Targets of speed are another matter."""
    results = [each for one in report["sections"] for each in one.get("results", ())]
    wrong = any(each["met"] is False and each["target"] == "= 0" for each in results)
    return wrong or any("failed" in one for one in report["sections"])


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller batches: two minutes or so")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="sections with this in their title")
    parser.add_argument("--require-gpu", action="store_true", help="without a GPU: exit code 1")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, write and show; return the exit code."""
    args, begun = options(argv), time.monotonic()
    machine = {"problem": "no NVIDIA driver on this machine"}
    if has_driver():
        try:
            (machine,) = run(1, ROOT / "benchmarks" / "gpu_machine.py", (), 90.0)
        except RanksError as error:
            machine = {"problem": str(error).splitlines()[-1]}
    if machine["problem"]:
        print(f"Nothing measured: {machine['problem']}.")
        return int(args.require_gpu)
    sections = [each for each in plan(args.quick, machine["gpus"]) if args.only in each.title]
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def save(found: list[dict[str, Any]]) -> dict[str, Any]:
        report = as_report(machine, found, args.quick)
        args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if svg := picture(report):
            drawn = PICTURE if args.out == OUT else args.out.with_suffix(".svg")
            drawn.write_text(svg + "\n", encoding="utf-8")
        return report

    report = save(measure(machine, sections, run, begun + WHOLE_S, save))
    print(f"{told(report)}\n\nWritten to {args.out}; lesson 12 shows the committed one after: make lessons ARGS=12")
    return int(went_wrong(report))


if __name__ == "__main__":
    sys.exit(main())

"""From results to a text in markdown. Pure: what the ranks measured comes in, lines come out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from figures import Case, Quartiles, best, quartiles, ratios, winners

from workbench.common.text import count

TITLES = {
    "collectives": "Allreduce of one array",
    "verbs": "The other collectives, by a rank's bytes",
    "many": "Many small tensors, and a lone one",
    "training": "Training",
    "rivals": "Training, beside what people choose today",
    "torch_training": "torch as it is used now",
    "tensorflow_training": "TensorFlow, a custom loop",
    "jax_training": "JAX, one jit",
    "keras_tensorflow": "Keras' fit on TensorFlow",
    "keras_jax": "Keras' fit on JAX",
    "keras_torch": "Keras' fit on torch",
    "keras_torch_loop": "Keras on torch, a custom loop",
}
BUSY_PERCENT = 10.0  # from here on the text warns
READING = (
    "Median of the rounds, with quartiles in brackets. **Bold**: the fastest. A ratio compares neighbours in time, "
    "round by round, and is the median of that: above 1 a peer is slower than the workbench. Each rank is tied to one "
    "core; all peers run in the same processes, in turns."
)


class Result(TypedDict, total=False):
    """What one run of a worker printed, and what the driver adds.

    Args:
        section: which worker.
        ranks: how many.
        mpi: the library's version.
        ours: which of the peers are the workbench.
        limit: the one that cannot be beaten, or "".
        cases: see :class:`figures.Case`.
        absent: peers that were not there, and why.
        library, idle_percent, step_ms: of the section ``idle``.
        elsewhere: what of the peers ran in an environment of its own, with its version.
        failed: what was said instead of a result.
        others_percent: share of the machine that other processes took.
    """

    section: str
    ranks: int
    mpi: str
    ours: list[str]
    limit: str
    cases: list[Case]
    absent: dict[str, str]
    library: str
    idle_percent: list[float]
    step_ms: dict[str, list[float]]
    elsewhere: str
    failed: str
    others_percent: float


def markdown(kind: str, machine: Mapping[str, Any], results: Sequence[Result]) -> str:
    """The whole text."""
    lines = [f"# Benchmarks, {kind}", "", *about(machine), "", READING]
    for result in results:
        if "failed" in result:
            lines += ["", f"## {result['section']}, {result['ranks']} ranks: failed", "", "```"]
            lines += [*result["failed"].strip().splitlines(), "```"]
        elif result["section"] in TITLES:
            lines += ["", *section(result, int(machine["cores"]))]
    idle = [result for result in results if "idle_percent" in result]
    return "\n".join([*lines, *(["", *runtime(idle)] if idle else []), ""])


def speeds(machine: Mapping[str, Any]) -> list[str]:
    """What bounds a collective there; of older results it is not known."""
    if "copy_gb_s" not in machine:
        return []
    copies, flag, wake = (machine[name] for name in ("copy_gb_s", "flag_us", "wake_us"))
    return [
        f"One core copies {copies:g} GB/s; a flag in shared memory takes {flag:g} µs to another process, a wake-up "
        f"{wake:g} µs."
    ]


def about(machine: Mapping[str, Any]) -> list[str]:
    """The machine, and a warning where others were busy on it."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    before, after = ("/".join(f"{each:g}" for each in machine[when]) for when in ("load_before", "load_after"))
    others = machine["others_percent"]
    warning = " **That is much: do not read small differences.**" if others >= BUSY_PERCENT else ""
    return [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}. {versions}; "
        f"{machine['mpi']}. {machine['date']}.",
        *speeds(machine),
        "",
        f"Load average (1/5/15 min) before {before}, after {after}. Other processes took {others:g} % of the machine's "
        f"CPU time.{warning}",
    ]


def section(result: Result, cores: int) -> list[str]:
    """Tables and sentences of one run."""
    ranks, cases, limit = result["ranks"], result["cases"], result["limit"]
    lines = [f"## {TITLES[result['section']]}, {count(ranks, 'rank')} on {count(min(ranks, cores), 'core')}", ""]
    if cases:
        peers = list(cases[0]["seconds"])
        base = result["ours"][0]
        lines += times(cases, peers, limit)
        lines += ["", f"Time over that of `{base}`:", "", *relative(cases, [p for p in peers if p != base], base), ""]
        others = [peer for peer in peers if peer not in result["ours"] and peer != limit]
        lines += [wins(cases, mine, others) for mine in result["ours"]]
    if where := result.get("elsewhere"):
        lines += [f"- {where} ran in an environment of its own, in turns with these processes, round by round."]
    lines += [f"- Not here: {peer}: {why}." for peer, why in result["absent"].items()]
    return lines


def times(cases: Sequence[Case], peers: Sequence[str], limit: str) -> list[str]:
    """Milliseconds, or images per second with their share of the limit's; a row for each case."""
    trains = bool(cases[0]["images"])
    rows = []
    for case in cases:
        fastest, cells = best(case, limit), []
        for peer in peers:
            text = rate(case, peer, limit) if trains else milliseconds(quartiles(case["seconds"][peer]))
            cells.append(f"**{text}**" if peer == fastest else text)
        rows.append([case["title"], *cells, fastest])
    names = [f"{peer} (limit)" if peer == limit else peer for peer in peers]
    return table(["images/s" if trains else "ms", *names, "best"], rows)


def milliseconds(seconds: Quartiles) -> str:
    """``1.23 (1.20–1.31)``."""
    return f"{number(seconds.median * 1e3)} ({number(seconds.low * 1e3)}–{number(seconds.high * 1e3)})"


def rate(case: Case, peer: str, limit: str) -> str:
    """``417, 96 % (95–97)``: images per second, and their share of the limit's, round by round."""
    per_second = case["images"] / quartiles(case["seconds"][peer]).median
    if peer == limit:
        return number(per_second)
    shares = quartiles(share_of_limit(case, peer, limit))
    return f"{number(per_second)}, {shares.median:.0f} % ({shares.low:.0f}–{shares.high:.0f})"


def share_of_limit(case: Case, peer: str, limit: str) -> list[float]:
    """Percent, by round."""
    seconds = case["seconds"]
    return [100 * least / mine for least, mine in zip(seconds[limit], seconds[peer], strict=True)]


def relative(cases: Sequence[Case], peers: Sequence[str], base: str) -> list[str]:
    """Ratios to ``base``; a row for each case."""
    rows = []
    for case in cases:
        found = ratios(case["seconds"], base)
        cells = [
            f"{number(each.median)} ({number(each.low)}–{number(each.high)})"
            for each in (found[peer] for peer in peers)
        ]
        rows.append([case["title"], *cells])
    return table(["ratio", *peers], rows)


def wins(cases: Sequence[Case], mine: str, others: Sequence[str]) -> str:
    """One sentence: where others are faster than ``mine``, and by how much."""
    found = []
    for case in cases:
        names = []
        for name, ratio in winners(case, mine, others).items():
            doubt = ", within the noise" if ratio.high >= 1 else ""
            names.append(f"{name} ({number(ratio.median)} of our time{doubt})")
        if names:
            found.append(f"{case['title']}: {', '.join(names)}")
    return f"- Where a peer wins over `{mine}`: {'; '.join(found) or 'nowhere here'}."


def runtime(results: Sequence[Result]) -> list[str]:
    """What the runtime itself costs."""
    lines = ["## Idle, and per step", ""]
    rows = []
    for each in results:
        shares = " ".join(f"{share:.2f}" for share in each["idle_percent"])
        rows.append([str(each["ranks"]), each["library"], shares])
    lines += table(["ranks", "idle with", "percent of a core, each rank"], rows)
    steps = [each for each in results if "step_ms" in each]
    if steps:
        names = list(steps[0]["step_ms"])
        rows = [
            [str(each["ranks"]), *(" ".join(number(ms) for ms in each["step_ms"][name]) for name in names)]
            for each in steps
        ]
        lines += ["", "CPU milliseconds per step with 161 tiny gradients (as many as ResNet-50 has), each rank:", ""]
        lines += table(["ranks", *names], rows)
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in markdown.

    Example:
        >>> table(["a", "b"], [["1", "2"]])
        ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def number(value: float) -> str:
    """Three significant digits, never an exponent.

    Example:
        >>> number(0.012345), number(1.5), number(1234.5)
        ('0.0123', '1.50', '1234')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"

"""What autotune has tried: a table, a picture, and the reason why it has settled."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.errors import LaunchError
from workbench.job.context import HOLDER
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing import LEFT, RIGHT, TOP
from workbench.observe.drawing_kit import WIDTH, clean
from workbench.observe.figure import Figure
from workbench.runtime.steady.tuner import Choice, TunerTrial

_HEIGHT = 180.0


class AutotuneReport(Figure):
    """The trials so far. A notebook shows a picture, ``print`` a table.

    Args:
        trials: in the order in which they were measured.
        choice: what is used now.
        settled: why it stays; "" while autotune goes on.

    Example:
        >>> print(AutotuneReport([TunerTrial(Choice(1 << 20, 0.001), 5e6)], Choice(1 << 22, 0.002), ""))
        1: fusion 1 MiB, window 1 ms, buckets 16 MiB, eager 4 KiB, one level: 5 MB/s
        Autotune is running; it tries fusion 4 MiB, window 2 ms, buckets 16 MiB, eager 4 KiB, one level now.
    """

    def __init__(self, trials: Sequence[TunerTrial], choice: Choice, settled: str) -> None:
        self.trials, self.choice, self.settled = list(trials), choice, settled
        said = settled or f"Autotune is running; it tries {choice} now."
        lines = [f"{i}: {_described(one)}" for i, one in enumerate(self.trials, 1)]
        super().__init__(_svg(self.trials, choice, said), "\n".join([*lines, said]))


def autotune_report() -> AutotuneReport:
    """The trials of autotune so far, and why it has stopped. Only rank 0 has it.

    Raises:
        LaunchError: this is another rank, or the job does not tune.
        NotInitializedError: call ``init()`` first.
    """
    context = HOLDER.get()
    if not context.settings.autotune:
        raise LaunchError("autotune_report(): this job does not tune. Set HOROVOD_AUTOTUNE=1 before init().")
    if context.tuner is None:
        raise LaunchError(f"autotune_report(): this is rank {context.rank}. Call it on rank 0: only rank 0 tunes.")
    return AutotuneReport(context.tuner.trials, context.tuner.choice, context.tuner.settled)


def _described(trial: TunerTrial) -> str:
    simulated = "" if trial.expected is None else f", simulated {trial.expected / 1e6:.4g}"
    return f"{trial.choice}: {trial.score / 1e6:.4g} MB/s{simulated}"


def _svg(trials: Sequence[TunerTrial], choice: Choice, said: str) -> str:
    most = max((max(trial.score, trial.expected or 0.0) for trial in trials), default=0.0) or 1.0
    bottom = TOP + _HEIGHT
    legend = "red: used now; dash: simulated"
    step = (WIDTH - LEFT - RIGHT) / max(1, len(trials))
    parts = [
        f'<line class="wbt-line" x1="{LEFT:g}" y1="{bottom:g}" x2="{WIDTH - RIGHT:g}" y2="{bottom:g}"/>',
        kit.label(LEFT - 6, TOP + 4, f"{most / 1e6:.4g} MB/s", anchor="end"),
        kit.label(LEFT - 6, bottom + 4, "0", anchor="end"),
        kit.label(LEFT, bottom + 18, f"trial 1 … {len(trials)}; {legend}"),
    ]
    for i, trial in enumerate(trials):
        x, y = LEFT + (i + 0.5) * step, bottom - _HEIGHT * trial.score / most
        used = "wbt-mark" if trial.choice == choice else "wbt-text"
        what = clean(f"{i + 1}: {_described(trial)}")
        parts.append(f'<circle class="{used}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{what}</title></circle>')
        if trial.expected is not None:
            y = bottom - _HEIGHT * trial.expected / most
            parts.append(f'<path class="wbt-line" d="M{x - 6:.1f} {y:.1f}h12"><title>{what}</title></path>')
    lines = [said[i : i + 130] for i in range(0, len(said), 130)]
    words = [kit.label(12, 18 + 14 * i, line) for i, line in enumerate(lines)]
    return kit.document(said, WIDTH, bottom + 28, [*words, *parts])

"""What to try next, and when to settle. No clock, no ranks: a score in, a choice out.

1. The first ``warmup_samples`` scores are forgotten; the choice is the one that the job began with.
2. By then it is known which settings matter in this job. The others keep their values, for each that is tuned in vain
   takes trials from the rest.
3. The first choice is the first trial. The second is what the simulator expects to be the best, where it knows the
   machine. Then come four fixed ones, then those of ``bayes.py``.
4. After ``max_samples`` trials the best stays for the rest of the job.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import TextIO

from workbench.config import TUNED, Settings
from workbench.errors import LaunchError
from workbench.runtime.steady import bayes, eager

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Values of the settings that are tuned; see :class:`workbench.config.Settings`.

    Example:
        >>> print(Choice(64 << 20, 0.001))
        fusion 64 MiB, window 1 ms, buckets 16 MiB, eager 4 KiB, one level
    """

    fusion_threshold_bytes: int
    fusion_window_s: float
    bucket_bytes: int = Settings.bucket_bytes
    eager_bytes: int = Settings.eager_bytes
    hierarchical_allreduce: int = Settings.hierarchical_allreduce

    def __str__(self) -> str:
        fusion, buckets = (each / (1 << 20) for each in (self.fusion_threshold_bytes, self.bucket_bytes))
        levels = "two levels" if self.hierarchical_allreduce else "one level"
        return (
            f"fusion {fusion:.3g} MiB, window {self.fusion_window_s * 1e3:.3g} ms, buckets {buckets:.3g} MiB, "
            f"eager {self.eager_bytes / 1024:.3g} KiB, {levels}"
        )


_RANGES = {
    "fusion_threshold_bytes": (64 << 10, 128 << 20),
    "fusion_window_s": (5e-5, 1e-2),
    "bucket_bytes": (1 << 20, 64 << 20),
    "eager_bytes": (256, eager.MOST_BYTES),
}
"""On a logarithmic scale; ``hierarchical_allreduce`` is 0 or 1."""
_ALWAYS = ("fusion_threshold_bytes", "fusion_window_s")
_SIMULATED = (*_ALWAYS, "bucket_bytes")
_GRID = {1: 9, 2: 9, 3: 5}
_FIRST = ((0.9, 0.2, 0.4, 0.8, 1.0), (0.5, 0.1, 0.9, 0.1, 0.0), (0.3, 0.6, 0.1, 0.6, 1.0), (0.75, 0.9, 0.75, 0.3, 0.0))
_HEADER = "hierarchical_allreduce,hierarchical_allgather,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score"
_HEADER += ",bucket_size,eager_bytes"


@dataclass(frozen=True)
class TunerTrial:
    """A choice, and the bytes that were reduced per second with it; as the simulator expects them, if it does."""

    choice: Choice
    score: float
    expected: float | None = None


class Tuner:
    """Finds the choice with the highest score.

    Args:
        start: the first choice.
        fixed: names of settings that keep the value of ``start``.
        warmup_samples, max_samples, noise: see ``autotune_*`` in :class:`workbench.config.Settings`.
        write: takes the log, line by line.
        expected: bytes per second with a choice, as simulated.

    Attributes:
        choice: the current one.
        trials: so far.
        settled: why the choice is the last one; "" while it is not.

    Example:
        >>> tuner = Tuner(Choice(64 << 20, 0.001), fixed=TUNED)
        >>> tuner.settled.partition(":")[0]
        'All tunable settings were set by the user'
    """

    def __init__(
        self, start: Choice, fixed: Collection[str] = (), warmup_samples: int = 3, max_samples: int = 20,
        noise: float = 0.8, write: Log | None = None, expected: Callable[[Choice], float] | None = None,
    ) -> None:  # fmt: skip
        self.choice, self._start, self._noise = start, start, noise
        self._fixed, self._matter, self._free = frozenset(fixed), set(_ALWAYS), list[str]()
        self._warmups, self._max = warmup_samples, max_samples
        self.trials: list[TunerTrial] = []
        self.settled = ""
        self._write, self._expected = write or Log(""), expected
        self._first: list[dict[str, float]] = []
        if self._fixed.issuperset(TUNED):
            self.settled = f"All tunable settings were set by the user: {start}."

    def mark_relevant(self, name: str, now: int | None = None) -> None:
        """This job has something that the setting changes: it is tuned, if this is said before the first trial ends.

        Args:
            name: of the setting. From any thread.
            now: what it is in this job, if that does not follow from the settings; to be said before the job begins.
        """
        self._matter.add(name)
        if now is not None:
            self.choice = self._start = replace(self._start, **{name: now})

    def tell(self, score: float) -> Choice:
        """A sample's score with the current choice; return the next choice."""
        if self.settled:
            return self.choice
        if self._warmups:
            self._warmups -= 1
            return self.choice
        if not self.trials and not self._begin():
            return self.choice
        self.trials.append(TunerTrial(self.choice, score, self._expected(self.choice) if self._expected else None))
        self._write.trial(self.trials[-1])
        self.choice = self._settle() if len(self.trials) >= self._max else self._next()
        return self.choice

    def _begin(self) -> bool:
        """What is tuned is known now; is there anything?"""
        matter = set(self._matter)
        self._free = [name for name in TUNED if name in matter and name not in self._fixed]
        self._first = self._expected_best() + [dict(zip(TUNED, point, strict=True)) for point in _FIRST]
        if not self._free:
            self.settled = f"The settings that matter to this job were set by the user: {self._start}."
        return bool(self._free)

    def _measured(self) -> tuple[list[list[float]], list[float]]:
        return [self._place(trial.choice) for trial in self.trials], [trial.score for trial in self.trials]

    def _next(self) -> Choice:
        tried = len(self.trials)
        if tried <= len(self._first):
            return self._choice(self._first[tried - 1])
        return self._choice(dict(zip(self._free, bayes.suggest(*self._measured(), self._noise), strict=True)))

    def _expected_best(self) -> list[dict[str, float]]:
        """Where it lies on a grid, if anything is expected."""
        names = [name for name in self._free if name in _SIMULATED]
        if not (self._expected and names):
            return []
        rate, most = self._expected, _GRID[len(names)]
        steps = [i / (most - 1) for i in range(most)]
        points = (dict(zip(names, xs, strict=True)) for xs in product(steps, repeat=len(names)))
        return [max(points, key=lambda point: rate(self._choice(point)))]

    def _settle(self) -> Choice:
        best = self.trials[bayes.best_of(*self._measured(), self._noise)]
        usual = median(trial.score for trial in self.trials if trial.choice == best.choice)
        self.settled = (
            f"{len(self.trials)} samples were taken, as many as WORKBENCH_AUTOTUNE_BAYES_OPT_MAX_SAMPLES allows. "
            f"What stays: {best.choice}: {usual / 1e6:.4g} MB/s, the start had {self.trials[0].score / 1e6:.4g}."
        )
        self._write.trial(best)
        self._write.close()
        return best.choice

    def _place(self, choice: Choice) -> list[float]:
        """Where a choice lies between the ends of its ranges."""
        return [_place(name, getattr(choice, name)) for name in self._free]

    def _choice(self, point: Mapping[str, float]) -> Choice:
        free = {name: _value(name, point[name]) for name in self._free if name in point}
        return replace(self._start, **free)  # type: ignore[arg-type]  # seconds are a float, the rest are int


def _place(name: str, value: float) -> float:
    if name not in _RANGES:
        return float(value)
    low, high = _RANGES[name]
    return math.log(min(max(value, low), high) / low) / math.log(high / low)


def _value(name: str, place: float) -> int | float:
    """Undo :func:`_place`."""
    if name not in _RANGES:
        return round(place)
    low, high = _RANGES[name]
    value = low * (high / low) ** place
    return round(value, 6) if name.endswith("_s") else int(value)


class Log:
    """Trials as CSV, in the columns of Horovod: the threshold in MiB, the score in bytes per microsecond.

    Behind them come two of our own: a bucket's size in MiB, and the eager limit in bytes.

    Args:
        path: of the file, which is begun anew; "" for none.
        cache: is the response cache on?

    Raises:
        LaunchError: the file cannot be written.
    """

    def __init__(self, path: str, cache: bool = True) -> None:
        self._path, self._cache, self._file = path, cache, None if not path else _open(path)
        self._line(_HEADER)

    def trial(self, trial: TunerTrial) -> None:
        choice = trial.choice
        threshold, window = choice.fusion_threshold_bytes / (1 << 20), choice.fusion_window_s * 1e3
        self._line(
            f"{choice.hierarchical_allreduce:d},0,{self._cache:d},{window:g},{threshold:g},{trial.score / 1e6:g},"
            f"{choice.bucket_bytes / (1 << 20):g},{choice.eager_bytes}"
        )

    def close(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def _line(self, text: str) -> None:
        if not self._file:
            return
        try:
            self._file.write(text + "\n")
            self._file.flush()
        except OSError as error:  # a full disk must not end a training
            log.warning("HOROVOD_AUTOTUNE_LOG=%s: %s. Tuning goes on without the log.", self._path, error)
            self.close()


def _open(path: str) -> TextIO:
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise LaunchError(
            f"HOROVOD_AUTOTUNE_LOG={path!r} cannot be written on rank 0: {error.strerror}. "
            "Name a file in an existing folder that you may write to."
        ) from None


def tuner(settings: Settings, expected: Callable[[Choice], float] | None = None) -> Tuner | None:
    """Rank 0's, if the settings ask for one.

    Args:
        settings: of the job.
        expected: see :class:`Tuner`.

    Raises:
        LaunchError: a setting cannot be used, scikit-learn is missing, or the log cannot be written.

    Example:
        >>> tuner(Settings()) is None
        True
    """
    if not settings.autotune:
        return None
    for name in ("autotune_steps_per_sample", "autotune_bayes_opt_max_samples"):
        if (value := getattr(settings, name)) < 1:
            raise LaunchError(f"WORKBENCH_{name.upper()}={value}: 1 at least is needed.")
    if settings.autotune_gaussian_process_noise > 1:
        value = settings.autotune_gaussian_process_noise
        raise LaunchError(f"WORKBENCH_AUTOTUNE_GAUSSIAN_PROCESS_NOISE={value}: a number from 0 to 1 is needed.")
    if unknown := [name for name in settings.fixed if name not in TUNED]:
        raise LaunchError(f"WORKBENCH_AUTOTUNE_FIXED names {unknown[0]!r}; the tuned settings are {', '.join(TUNED)}.")
    bayes.load()
    return Tuner(
        Choice(**{name: getattr(settings, name) for name in TUNED}), settings.fixed,
        settings.autotune_warmup_samples, settings.autotune_bayes_opt_max_samples,
        settings.autotune_gaussian_process_noise,
        Log(settings.autotune_log, bool(settings.cache_capacity)), expected,
    )  # fmt: skip

"""The model of a training step on n ranks, T(n) = G/n + C(n), and its picture beside what was measured.

What it leaves out: work that does not become less with the batch (the optimizer, Python), cores and memory that ranks
share, ranks that are late; and that messages may be hidden behind computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.course.figures import COLOURS, Canvas, finished
from workbench.observe.figure import Figure


@dataclass(frozen=True)
class Model:
    """One step: each of n ranks computes its n-th of the batch, then a ring adds up the gradients.

    Args:
        compute_s: G, a step's computation on one rank.
        nbytes: K, the bytes of all gradients.
        alpha_s, beta_s: seconds per message, and per byte.

    Example:
        >>> model = Model(compute_s=0.1, nbytes=100e6, alpha_s=20e-6, beta_s=1e-10)
        >>> [round(model.step_s(n) * 1e3, 2) for n in (1, 2, 4)]
        [100.0, 60.04, 40.12]
        >>> round(model.speedup(4), 2), round(model.efficiency(4), 2), round(model.weak_efficiency(4), 2)
        (2.49, 0.62, 0.87)
    """

    compute_s: float
    nbytes: float
    alpha_s: float
    beta_s: float

    def communicate_s(self, n: int) -> float:
        """C(n): 2(n - 1) messages of an n-th each, one after the other."""
        return 2 * (n - 1) * (self.alpha_s + self.beta_s * self.nbytes / n)

    def step_s(self, n: int) -> float:
        """T(n) at the same global batch."""
        return self.compute_s / n + self.communicate_s(n)

    def speedup(self, n: int) -> float:
        """Strong scaling: how many times as fast as one rank, at the same global batch."""
        return self.step_s(1) / self.step_s(n)

    def efficiency(self, n: int) -> float:
        return self.speedup(n) / n

    def weak_efficiency(self, n: int) -> float:
        """Weak scaling, where each rank has a whole batch: the share of the time that is not communication."""
        return self.compute_s / (self.compute_s + self.communicate_s(n))


def line(small: tuple[float, float], large: tuple[float, float], n: int) -> tuple[float, float]:
    """α and β of a ring from the seconds that it took with few bytes and with many.

    Args:
        small, large: (bytes, seconds).
        n: ranks.

    Example:
        >>> model = Model(0.0, 1e6, alpha_s=2e-5, beta_s=1e-9)
        >>> alpha_s, beta_s = line((0, 2 * 3 * 2e-5), (1e6, model.communicate_s(4)), n=4)
        >>> round(alpha_s * 1e6, 6), round(beta_s * 1e9, 6)
        (20.0, 1.0)
    """
    slope = (large[1] - small[1]) / (large[0] - small[0])
    alpha_s = (small[1] - slope * small[0]) / (2 * (n - 1))
    return max(0.0, alpha_s), max(0.0, slope * n / (2 * (n - 1)))


def draw(
    models: Mapping[str, Model], ranks: Sequence[int], measured: Mapping[int, float] | None = None, title: str = ""
) -> Figure:
    """Speed-up over ranks: the ideal dotted, each model a line of its own kind, what was measured as points.

    Example:
        >>> draw({"model": Model(0.1, 100e6, 20e-6, 1e-10)}, [1, 2, 4], {1: 1.0, 2: 1.6}, "Speed-up")
        Speed-up: ideal 4.00 with 4; model 2.49 with 4; measured 1.60 with 2
    """
    markers = ("s", "^", "D", "v")
    with Canvas() as (figure, axes):
        axes.plot(ranks, ranks, color="grey", ls=":", label="ideal")
        words = [f"ideal {ranks[-1]:.2f} with {ranks[-1]}"]
        for i, (name, model) in enumerate(models.items()):
            values = [model.speedup(n) for n in ranks]
            style = {"ls": ("-", "--", "-.")[i % 3], "marker": markers[i % len(markers)], "markersize": 4}
            axes.plot(ranks, values, color=COLOURS[i % len(COLOURS)], label=name, **style)
            words.append(f"{name} {values[-1]:.2f} with {ranks[-1]}")
        if measured:
            axes.plot(list(measured), list(measured.values()), "ko", ms=8, mfc="none", label="measured")
            words.append("measured " + ", ".join(f"{value:.2f} with {n}" for n, value in measured.items() if n > 1))
        axes.set(xlabel="ranks", ylabel="speed-up", title=title, xticks=ranks)
        axes.legend(frameon=False)
        return finished(figure, f"{title or 'Speed-up'}: " + "; ".join(words))

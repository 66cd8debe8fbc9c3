"""How much each rank's samples count in a mean: each rank in turn has ones where the others have zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from workbench.course.provenance.case import Case
from workbench.course.simulator import simulate
from workbench.course.simulator.communicator import copied

_DENOMINATOR = 1000
_DEADLINE_S = 1.0


@dataclass(frozen=True)
class Weighed:
    """How the samples of an exercise are weighed.

    Args:
        counts: of a case, each rank's number of samples.
        ones: of a case and a rank, all ranks' arguments with ones as that rank's samples and zeros as the others'.
        read: the mean in a result; the result itself if it is left out.
    """

    counts: Callable[[Case], Sequence[int]]
    ones: Callable[[Case, int], Sequence[tuple[Any, ...]]]
    read: Callable[[Any], Any] = lambda result: result


def weights(function: Callable[..., Any], case: Case, weighed: Weighed) -> str:
    """What a sample of each rank counts, and should count; empty where that is right, or cannot be told.

    Args:
        function: the learner's, which gave a wrong result.
        case: in which it did.
        weighed: how its samples are weighed.
    """
    counts = weighed.counts(case)
    shares: dict[int, list[Fraction]] = {}  # by rank with samples: what one of them counts in each rank's result
    try:
        for rank, samples in enumerate(counts):
            if samples:
                inputs = [tuple(map(copied, one)) for one in weighed.ones(case, rank)]
                shares[rank] = _shares(function, inputs, weighed, samples)
    except Exception:  # noqa: BLE001 - the learner's: the numbers are told anyway
        return ""
    right = Fraction(1, sum(counts))
    for teller in range(case.n):
        mine = {rank: share[teller] for rank, share in shares.items()}
        if any(share != right for share in mine.values()):
            told = ", one ".join(f"of rank {rank} counts {share}" for rank, share in mine.items())
            return f"in the result of rank {teller} a sample {told}; each of the {sum(counts)} should count {right}"
    return ""


def _shares(
    function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], weighed: Weighed, samples: int
) -> list[Fraction]:
    run = simulate(len(inputs), lambda comm: function(comm, *inputs[comm.rank]), deadline_s=_DEADLINE_S)
    means = [float(np.asarray(weighed.read(result)).reshape(-1)[0]) for result in run.results]
    return [Fraction(mean / samples).limit_denominator(_DENOMINATOR) for mean in means]

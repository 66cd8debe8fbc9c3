"""What autotune expects, against a closed form; and as the first thing that it tries."""

from __future__ import annotations

from itertools import product
from math import ceil, log
from pathlib import Path

import numpy as np
import pytest
from installed import needs

import workbench
from workbench.config import settings
from workbench.errors import LaunchError
from workbench.job.context import HOLDER
from workbench.runtime.steady.tuner import Choice, Tuner
from workbench.simulate.measured.expectation import expectation, rates
from workbench.simulate.measured.fit import Constant, Fit
from workbench.simulate.measured.links import Links
from workbench.simulate.measured.prediction import Measured
from workbench.simulate.steps import Span

needs("sklearn")
LATENCY_S, PER_BYTE_S, ANNOUNCE_S = 1e-3, 1e-8, 2e-4
WAY = Fit(*[Constant(x, x, x) for x in (LATENCY_S, PER_BYTE_S)], doubt=0)
LAYERS = tuple(Span(f"layer {i}", 0.0, 0.0, values=10_000) for i in range(60))
MEASURED = Measured(Links(2, 1, None, WAY, ANNOUNCE_S), LAYERS, bucket_bytes=0)


@pytest.mark.parametrize("together", [1, 7, 30, 60])
def test_each_batch_costs_its_latency(together: int) -> None:
    """All gradients are ready at once; a ring of two sends two messages a batch, each with half of its bytes."""
    nbytes = 4 * 10_000 * 60
    batches_s = ceil(60 / together) * 2 * LATENCY_S + nbytes * PER_BYTE_S
    rate = rates(MEASURED, ranks=2, hosts=2)(Choice(together * 40_000, 0.0))
    messages_s = 3.9e-6 + 60 * 16e-9  # rank 0's CPU, see Negotiation
    assert rate == pytest.approx(nbytes / (batches_s + ANNOUNCE_S + messages_s), rel=1e-6)


def test_the_best_that_is_expected_is_the_second_trial() -> None:
    """The best of a grid on logarithmic scales, found here by going through it; each trial has what was expected."""

    def rate(choice: Choice) -> float:
        return 1e9 / (1 + log(choice.fusion_threshold_bytes / 1.1e6) ** 2 + log(choice.fusion_window_s / 7e-4) ** 2)

    tuned = Tuner(Choice(64 << 20, 0.001), warmup_samples=0, max_samples=5, expected=rate)
    while not tuned.settled:
        tuned.tell(rate(tuned.choice))
    sizes, windows = (low * (high / low) ** np.linspace(0, 1, 9) for low, high in ((64 << 10, 128 << 20), (5e-5, 1e-2)))
    best = max((Choice(int(size), round(float(s), 6)) for size, s in product(sizes, windows)), key=rate)
    assert tuned.trials[1].choice == best
    assert [trial.expected for trial in tuned.trials] == [rate(trial.choice) for trial in tuned.trials]


def test_buckets_are_expected_to_cost_their_latencies() -> None:
    """All gradients are ready at once: buckets of a size cost as much as batches of that size do without buckets."""
    measured = Measured(Links(2, 1, None, WAY, ANNOUNCE_S), LAYERS)
    rate, unbucketed = rates(measured, ranks=2, hosts=2), rates(MEASURED, ranks=2, hosts=2)
    for together in (1, 7, 30):
        expected = unbucketed(Choice(together * 40_000, 0.0))
        assert rate(Choice(1, 0.0, bucket_bytes=together * 40_000)) == pytest.approx(expected, rel=0.02)


def test_a_fixed_setting_stays_in_what_is_expected() -> None:
    """Only the other one is chosen by the simulator."""
    rate = rates(MEASURED, ranks=2, hosts=2)
    tuned = Tuner(Choice(80_000, 0.001), ["fusion_threshold_bytes"], 0, 4, expected=rate)
    tuned.tell(1.0)
    assert tuned.choice.fusion_threshold_bytes == 80_000
    assert rate(tuned.choice) >= rate(Choice(80_000, 0.01))


def test_a_measured_job_begins_with_what_the_simulator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``measure(model, batch).save(path)``, then a job with ``WORKBENCH_AUTOTUNE_START=path``."""
    import torch

    path = tmp_path / "measured.json"

    def measured() -> None:
        model = torch.nn.Sequential(*[torch.nn.Linear(20, 20) for _ in range(6)])
        found = workbench.measure(model, (torch.ones(4, 20), torch.zeros(4).long()), seconds=0.1, doubt=10)
        if workbench.rank() == 0:
            found.save(path)

    workbench.run_threads(2, measured)
    for name, text in {"AUTOTUNE": "1", "AUTOTUNE_START": str(path), "AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3"}.items():
        monkeypatch.setenv(f"WORKBENCH_{name}", text)
    monkeypatch.setenv("WORKBENCH_AUTOTUNE_STEPS_PER_SAMPLE", "1")

    def tuned() -> tuple[str, str, list[float | None]]:
        for _ in range(30):
            workbench.allreduce(np.ones(1000), "x")
        workbench.barrier()
        if workbench.rank():
            return "", "", []
        report = workbench.autotune_report()
        return str(report), report.svg, [trial.expected for trial in HOLDER.get().tuner.trials]

    text, svg, expected = workbench.run_threads(2, tuned)[0]
    rate = expectation(str(path), ranks=2, hosts=1)
    assert len(expected) == 3
    assert expected[0] == rate(Choice(64 << 20, settings({}).fusion_window_s))
    assert expected[1] is not None
    assert expected[1] == max(each for each in expected if each is not None)
    assert text.count(", simulated ") == svg.count("<path") == 3


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ('{"links": {', "is cut off"),
        ("no layers", "no layers with parameters"),
        ("one host", "the link between hosts is not known"),
    ],
)
def test_a_file_that_says_too_little_is_named(content: str | None, why: str, tmp_path: Path) -> None:
    """With the variable, and how to make a right one."""
    path = tmp_path / "measured.json"
    if content == "no layers":
        Measured(MEASURED.links).save(path)
    elif content == "one host":
        Measured(Links(1, 2, WAY, None, ANNOUNCE_S), LAYERS).save(path)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(LaunchError, match=f"WORKBENCH_AUTOTUNE_START=.*{why}.*save"):
        expectation(str(path), ranks=2, hosts=2)

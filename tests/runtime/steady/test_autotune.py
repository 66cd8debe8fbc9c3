from __future__ import annotations

import csv
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from installed import needs
from thorough import once_more

import workbench as wb
from workbench.config import Settings, settings
from workbench.core.messages import Announce, Kind, Request, Response
from workbench.errors import LaunchError
from workbench.job.context import HOLDER
from workbench.runtime.steady import stack
from workbench.runtime.steady.autotune import StepMeter, TuningAnnouncer, ordered
from workbench.runtime.steady.tuner import TUNED, Choice, Tuner, TunerTrial, tuner

needs("sklearn")

START = Choice(64 << 20, 0.001)
HEADER = ["hierarchical_allreduce", "hierarchical_allgather", "cache_enabled", "cycle_time_ms"]
HEADER += ["tensor_fusion_threshold", "score", "bucket_size", "eager_bytes"]
QUICK = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}
CLEARED = [f"WORKBENCH_{name.upper()}" for name in TUNED] + ["HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"]
CLEARED += ["HOROVOD_HIERARCHICAL_ALLREDUCE"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Autotune with short samples."""
    for name in CLEARED:
        monkeypatch.delenv(name, raising=False)
    for name, text in QUICK.items():
        monkeypatch.setenv(name, text)
    return monkeypatch


def surface(choice: Choice, threshold_mib: float, window_ms: float) -> float:
    """A score with one top, 100, which halves within a factor of about 20."""
    across = math.log2(choice.fusion_threshold_bytes / (threshold_mib * (1 << 20))) / 5
    along = math.log2(choice.fusion_window_s * 1e3 / window_ms) / 4
    return 100 / (1 + across**2 + along**2)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *map(once_more, range(1, 4))])
@pytest.mark.parametrize("top", [(0.25, 0.1), once_more((2, 0.5)), once_more((32, 4))])
def test_it_finds_the_top_of_a_known_surface(top: tuple[float, float], seed: int) -> None:
    """Within 40 trials, 5 % of noise on each: what stays has 95 of 100 at least, without the noise."""
    chance, tuned = random.Random(seed), Tuner(START, warmup_samples=0, max_samples=40, noise=0.2)
    while not tuned.settled:
        tuned.tell(surface(tuned.choice, *top) * chance.gauss(1, 0.05))
    assert len(tuned.trials) == 40
    assert surface(tuned.choice, *top) >= 95


def test_warm_up_is_forgotten_and_what_is_settled_stays() -> None:
    """Scores of the warm-up are no trials; after the last trial no score changes anything."""
    tuned = Tuner(START, warmup_samples=2, max_samples=6)
    for score in (1e9, 1e9):
        assert tuned.tell(score) == START
    assert tuned.trials == []
    while not tuned.settled:
        tuned.tell(surface(tuned.choice, 4, 1))
    assert tuned.trials[0] == TunerTrial(START, surface(START, 4, 1))
    assert len(tuned.trials) == 6
    last, tried = tuned.choice, list(tuned.trials)
    assert last in [trial.choice for trial in tried]
    assert [tuned.tell(score) for score in (0.0, 1e12)] == [last, last]
    assert tuned.trials == tried


@pytest.mark.parametrize("name", TUNED)
def test_what_is_fixed_stays(name: str) -> None:
    """In every trial; the others are tried with several values."""
    tuned = Tuner(START, fixed=[name], warmup_samples=0, max_samples=10)
    for each in TUNED:
        tuned.mark_relevant(each)
    while not tuned.settled:
        tuned.tell(surface(tuned.choice, 4, 1))
    values = {each: {getattr(trial.choice, each) for trial in tuned.trials} for each in TUNED}
    assert values.pop(name) == {getattr(START, name)}
    assert all(len(found) > 5 or found == {0, 1} for found in values.values()), values


def test_what_does_not_matter_stays() -> None:
    """Threshold and window are always tuned; the rest only if somebody says so before the first trial ends."""
    tuned = Tuner(START, warmup_samples=1, max_samples=6)
    tuned.mark_relevant("bucket_bytes")
    for _ in range(2):
        tuned.tell(1.0)
    tuned.mark_relevant("eager_bytes")
    while not tuned.settled:
        tuned.tell(1.0)
    found = {name for name in TUNED if len({getattr(trial.choice, name) for trial in tuned.trials}) > 1}
    assert found == {"fusion_threshold_bytes", "fusion_window_s", "bucket_bytes"}
    fixed = Tuner(START, fixed=TUNED[:2], warmup_samples=0)
    assert (fixed.tell(1.0), fixed.trials) == (START, [])
    assert "that matter to this job were set by the user" in fixed.settled


@pytest.mark.parametrize("best", [0, 1])
def test_it_finds_the_faster_of_two_ways(best: int) -> None:
    """Whichever the job begins with: one level or two, where one of them takes twice as long."""
    for now in (0, 1):
        tuned = Tuner(START, warmup_samples=0, max_samples=12, noise=0.2)
        tuned.mark_relevant("hierarchical_allreduce", now=now)
        assert tuned.choice.hierarchical_allreduce == now
        while not tuned.settled:
            tuned.tell(100.0 if tuned.choice.hierarchical_allreduce == best else 50.0)
        assert tuned.choice.hierarchical_allreduce == best


def test_what_the_user_sets_is_fixed() -> None:
    """Under either name of the variable; and only where autotune is on."""
    assert settings({"HOROVOD_AUTOTUNE": "1"}).autotune_fixed == ""
    assert settings({"HOROVOD_FUSION_THRESHOLD": "4096"}).autotune_fixed == ""
    said = settings({"HOROVOD_AUTOTUNE": "1", "HOROVOD_FUSION_THRESHOLD": "4096", "WORKBENCH_FUSION_WINDOW_S": "0"})
    assert said.autotune_fixed == "fusion_threshold_bytes,fusion_window_s"
    assert [name for name in TUNED if said.tunes(name)] == ["bucket_bytes", "eager_bytes", "hierarchical_allreduce"]
    assert not settings({"HOROVOD_AUTOTUNE": "1", "WORKBENCH_WIRE": "float16"}).tunes("hierarchical_allreduce")
    rest = {"WORKBENCH_BUCKET_BYTES": "0", "WORKBENCH_EAGER_BYTES": "0", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
    said = settings({"HOROVOD_AUTOTUNE": "1", "WORKBENCH_AUTOTUNE_FIXED": ",".join(TUNED[:2]), **rest})
    built = tuner(said)
    assert built is not None
    assert "All tunable settings were set by the user" in built.settled
    assert built.tell(5.0) == Choice(64 << 20, 0.001, 0, 0, 1)


def test_a_pause_costs_one_step_and_not_the_sample() -> None:
    """The score is the median of the steps', the first step after a score apart; errors and other verbs count not."""
    meter = StepMeter(steps=3)
    x, y = (Response(name, Kind.ALLREDUCE, "float32", (25,)) for name in "xy")
    others = [Response("g", Kind.ALLGATHER, "float32", (9,)), Response("e", Kind.ALLREDUCE, error=("E", "why"))]
    scores = [meter.add([x, *others, y], now) for now in (0.0, 50.0, 51.0, 99.0, 100.0)]
    assert scores == [None, None, None, None, 200.0]
    assert meter.least_bytes == 100
    assert [meter.add([x, y], now) for now in (101.0, 103.0, 105.0, 107.0)] == [None, None, None, 100.0]


def test_the_log_is_as_horovods(tmp_path: Path) -> None:
    """Header, one line for each trial, and the best once more; MiB, milliseconds, bytes per microsecond."""
    path = tmp_path / "a.csv"
    env = {**QUICK, "HOROVOD_AUTOTUNE_LOG": str(path), "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0"}
    tuned = tuner(settings(env))
    assert tuned is not None
    while not tuned.settled:
        tuned.tell(1e6 * surface(tuned.choice, 4, 1))
    head, *rows = csv.reader(path.read_text().splitlines())
    assert head == HEADER
    assert len(rows) == 9
    assert [row[:3] for row in rows] == [["0", "0", "1"]] * 9
    assert {tuple(row[6:]) for row in rows} == {("16", "4096")}
    for row, trial in zip(rows, tuned.trials, strict=False):
        assert float(row[3]) == pytest.approx(trial.choice.fusion_window_s * 1e3, rel=1e-4)
        assert float(row[4]) == pytest.approx(trial.choice.fusion_threshold_bytes / (1 << 20), rel=1e-4)
        assert float(row[5]) == pytest.approx(trial.score / 1e6, rel=1e-4)
    assert rows[-1] in rows[:-1]
    assert float(rows[-1][4]) == pytest.approx(tuned.choice.fusion_threshold_bytes / (1 << 20), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0", "WORKBENCH_AUTOTUNE_STEPS_PER_SAMPLE=0"),
        ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "0", "WORKBENCH_AUTOTUNE_BAYES_OPT_MAX_SAMPLES=0"),
        ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "-1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES='-1' is negative"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5", "NOISE=1.5: a number from 0 to 1"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "much", "'much' is not a number"),
        ("WORKBENCH_AUTOTUNE_FIXED", "cache_capacity", "FIXED names 'cache_capacity'"),
        ("HOROVOD_AUTOTUNE_LOG", "/nowhere/at/all.csv", "HOROVOD_AUTOTUNE_LOG='/nowhere/at/all.csv' cannot be written"),
    ],
)
def test_bad_input_is_named(name: str, text: str, why: str) -> None:
    """The error has the variable and its value."""
    with pytest.raises((LaunchError, ValueError), match=why):
        tuner(settings({**QUICK, name: text}))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra to install."""
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with pytest.raises(LaunchError, match=r"scikit-learn.*pip install '\.\[autotune\]' in a clone"):
        tuner(settings(QUICK))


@pytest.mark.parametrize("cache", [0, 1024])
def test_all_ranks_change_at_the_same_decision(cache: int) -> None:
    """Each rank reads the same choices at the same place of its stream, and no other rank's responses are lost."""
    asked = Settings(autotune=1, autotune_warmup_samples=0, autotune_steps_per_sample=1, cache_capacity=cache)
    rank_0 = stack.coordinator(2, asked, Tuner(START, warmup_samples=0, max_samples=6))
    announcers = [stack.announcer(rank, asked) for rank in range(2)]
    heard: list[list[object]] = [[], []]
    for announcer, stream in zip(announcers, heard, strict=True):
        assert isinstance(announcer, TuningAnnouncer)
        announcer.use = stream.append
    number = 0
    for step in range(20):
        for rank in (step % 2, 1 - step % 2):
            order = "xyz" if rank else "zyx"
            requests = tuple(Request(name, Kind.ALLREDUCE, "float32", (4000,)) for name in order)
            decision = rank_0.take(Announce(rank, requests, number), step + rank / 10)
            number = max(number, decision.number)
            for announcer, stream in zip(announcers, heard, strict=True):
                stream += [response.name for response in announcer.read(decision)]
    assert heard[0] == heard[1]
    assert len([each for each in heard[0] if isinstance(each, Choice)]) >= 5
    assert sorted(each for each in heard[0] if isinstance(each, str)) == sorted("xyz" * 20)


DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")


@pytest.mark.parametrize("cache", [once_more("0"), "1024"])
def test_results_are_exact_while_settings_change(cache: str, quick: pytest.MonkeyPatch) -> None:
    """Sums of whole numbers have one result; ranks submit in orders of their own, in a process set too."""
    quick.setenv("WORKBENCH_CACHE_CAPACITY", cache)
    n = 3

    def job() -> tuple[set[tuple[float, ...]], str]:
        rank, chance, seen = wb.rank(), random.Random(wb.rank()), set()
        some = wb.add_process_set([0, 2])
        for step in range(60):
            tensors = [(f"{dtype}.{i}", dtype, 50 * 8**i) for dtype in DTYPES for i in range(4)]
            chance.shuffle(tensors)
            handles = {
                name: wb.allreduce_async(np.full(length, rank + step % 7, dtype), name, wb.Sum)
                for name, dtype, length in tensors
            }
            for name, dtype, length in tensors:
                expected = np.full(length, 3 + 3 * (step % 7), dtype)
                np.testing.assert_array_equal(handles[name].wait(30), expected, strict=True)
            if rank != 1:
                assert wb.allreduce(np.ones(5), "in the set", wb.Sum, process_set=some).tolist() == [2.0] * 5
            engine = HOLDER.get().engine
            eager = engine._announcer._eager.limit_bytes
            assert engine.settings.eager_bytes == eager
            seen.add((engine.settings.fusion_threshold_bytes, engine._batching.window_s, eager))
        settled = HOLDER.get().tuner.settled if rank == 0 else ""
        return seen, settled

    found = wb.run_threads(n, job)
    assert found[0][0] == found[1][0] == found[2][0]
    assert len(found[0][0]) >= 6
    assert len({eager for _, _, eager in found[0][0]}) >= 6
    assert "8 samples" in found[0][1]


def test_without_autotune_nothing_is_wrapped() -> None:
    """Nor has any rank a tuner."""
    assert not isinstance(stack.announcer(0, Settings()), TuningAnnouncer)
    assert wb.run_threads(2, lambda: HOLDER.get().tuner) == [None, None]


def test_an_order_survives_the_wire() -> None:
    """What rank 0 sends is what a rank reads, to the byte and the microsecond."""
    from workbench.core.messages import Decision
    from workbench.runtime.control.codec import decode_decision, encode_decision
    from workbench.runtime.steady.autotune import order

    choice = Choice(123_457, 0.000321, 5_000_000, 12_345, 1)
    (item,) = decode_decision(encode_decision(Decision(3, [order(choice)]))).items
    assert isinstance(item, Response)
    assert ordered(item) == choice


def test_an_init_after_a_shutdown_begins_anew(quick: pytest.MonkeyPatch) -> None:
    """A job that starts again, as an elastic one does after a reset, has no trial of the one before."""

    def job() -> int:
        for _ in range(12):
            wb.allreduce(np.ones(9000), "x")
        return len(HOLDER.get().tuner.trials) if wb.rank() == 0 else 0

    first, second = wb.run_threads(2, job)[0], wb.run_threads(2, job)[0]
    assert first == second > 0


def test_the_report_shows_each_trial(quick: pytest.MonkeyPatch) -> None:
    """A mark and a line for each, and why it settled; another rank, or a job that does not tune, is told so."""

    def job() -> object:
        for _ in range(40):
            wb.allreduce(np.ones(9000), "x")
        wb.barrier()
        if wb.rank():
            with pytest.raises(LaunchError, match="this is rank 1"):
                wb.autotune_report()
            return None
        return wb.autotune_report()

    report = wb.run_threads(2, job)[0]
    assert len(report.trials) == report.svg.count("<circle") == 8
    assert str(report).splitlines()[-1] == report.settled
    assert "8 samples were taken" in report.settled
    assert len(str(report).splitlines()) == 9
    quick.delenv("HOROVOD_AUTOTUNE")
    with pytest.raises(Exception, match="does not tune"):
        wb.run_threads(1, wb.autotune_report)


SCRIPT = """
import numpy as np, workbench as wb
wb.init()
for step in range(60):
    handles = [wb.allreduce_async(np.full(3000, wb.rank() + i, np.float32), f"g{i}", wb.Sum) for i in range(20)]
    for i, handle in enumerate(handles):
        assert (handle.wait(30) == 1 + 2 * i).all()
print("settled" if wb.rank() == 0 and wb.autotune_report().settled else "rank", wb.rank())
wb.shutdown()
"""


@pytest.mark.thorough
@pytest.mark.parallel
def test_workbench_run_with_autotune(tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    """Two processes: exact sums, a job that settles, and the log."""
    script, path = tmp_path / "train.py", tmp_path / "a.csv"
    script.write_text(SCRIPT)
    words = ["run", "-np", "2", "--autotune", "--autotune-log-file", str(path), "--autotune-steps-per-sample", "2"]
    words += ["--autotune-warmup-samples", "1", "--autotune-bayes-opt-max-samples", "6", sys.executable, str(script)]
    done = subprocess.run([sys.executable, "-m", "workbench.cli.main", *words], capture_output=True, timeout=55)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert b"settled 0" in done.stdout
    head, *rows = csv.reader(path.read_text().splitlines())
    assert (head, len(rows)) == (HEADER, 7)

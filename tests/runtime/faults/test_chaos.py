"""Chaos: a plan of faults, the same for the same seed; ranks that carry it out; jobs that go on all the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from thorough import once_more

from workbench.common.chaos import ACTS, JOIN, PATIENCE, STATES, Fault, parse
from workbench.runtime.faults.chaos import FaultInjector

SCRIPT = str(Path(__file__).resolve().parent / "scripts" / "counts_samples.py")
WITHOUT_STEP = "states=announced+response-received+amid-reduction+in-commit+in-join"  # numpy has no optimizer
KILLS = int(os.environ.get("WORKBENCH_TEST_KILLS", "300"))  # in the thorough tests


# --- the plan -----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_plan() -> None:
    """And another seed, or another number of ranks, another one."""
    text = "seed=7,kills=20,stops=3"
    assert parse(text, ranks=4).plan() == parse(text, ranks=4).plan()
    assert parse(text, ranks=4).plan() != parse(text.replace("7", "8"), ranks=4).plan()
    assert parse(text, ranks=4).plan() != parse(text, ranks=3).plan()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_plan_has_all_that_was_asked_for(ranks: int) -> None:
    """So many of each act, each state as often as the others, every rank; ranks join only where an epoch begins."""
    for seed in range(20):
        plan = parse(f"seed={seed},kills=60,stops=10,delays=20,cuts=30", ranks).plan()
        assert Counter(fault.act for fault in plan) == {"kill": 60, "stop": 10, "delay": 20, "cut": 30}, seed
        often = Counter(fault.state for fault in plan)
        assert set(often) == set(STATES), seed
        assert max(often.values()) - min(often.values()) <= 2, seed
        assert {fault.rank for fault in plan} == set(range(ranks)), seed
        assert all(before.ends_epoch for before, fault in pairwise(plan) if fault.state == JOIN), seed


def test_the_words_of_a_fault_repeat_it() -> None:
    """What the log says about a fault is a plan of just that one."""
    for fault in parse("seed=3,kills=9,stops=9,delays=9,cuts=9", ranks=4).plan():
        assert parse(fault.words).plan() == [fault]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed=7,kils=20", "'kils' is not known"),
        ("kills=-1", "kills=-1 is no whole number"),
        ("seed=x,kills=1", "seed=x is no whole number"),
        ("kills=1,kills=2", "kills is given twice"),
        ("seed=7", "there is no fault in it"),
        ("kills=0", "there is no fault in it"),
        ("", "there is no fault in it"),
        ("kills=1,states=asleep", "'asleep' is not a state"),
        ("at=explode:in-commit:0:1", "an act is one of"),
        ("at=kill:in-commit:0:1:9", "at=act:state:rank:nth"),
        ("at=kill:in-commit:-1", "rank=-1 is no whole number"),
        ("kills=99999", "too many"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, words: str) -> None:
    """In one sentence or two, which say what to write instead."""
    with pytest.raises(ValueError, match=re.escape(words)) as found:
        parse(text)
    assert str(found.value).startswith("--chaos")
    assert "\n" not in str(found.value)


# --- a rank ---------------------------------------------------------------------------------------------


def played(text: str, record: Path | None, *epochs: tuple[int, int, int]) -> list[str]:
    """What a process says that passes all states but the join three times in each of these (rank, size, epoch)."""
    said: list[str] = []
    player = FaultInjector(parse(text, record=str(record or "")), said.append)
    player.cut = lambda: None
    for epoch in epochs:
        player.begins(*epoch)
        player.passes(JOIN)
        for _ in range(3):
            for state in STATES[:-1]:
                player.passes(state)
    return [re.sub(r" \(.*", "", line) for line in said]


def test_a_fault_happens_once_in_a_job(tmp_path: Path) -> None:
    """Whoever takes the place of a rank does not do again what the rank did, but what follows."""
    text = "at=delay:in-commit:0:2,at=delay:announced:0:1"
    first = played("at=delay:in-commit:0:2", tmp_path, (0, 2, 1))
    assert first == ["chaos: fault 1 of 1: rank 0 of epoch 1 is delayed for 0.25 s at 'in commit'"]
    second = played(text, tmp_path, (0, 2, 1))
    assert second == ["chaos: fault 2 of 2: rank 0 of epoch 1 is delayed for 0.25 s at 'announced'"]
    assert played(text, tmp_path, (0, 2, 1)) == []


def test_each_rank_waits_for_its_turn(tmp_path: Path) -> None:
    """The second fault does not happen before the first, which is another rank's."""
    text = "at=delay:announced:1:1,at=delay:announced:0:1"
    assert played(text, tmp_path, (0, 2, 1)) == []
    assert len(played(text, tmp_path, (1, 2, 1))) == 1
    assert len(played(text, tmp_path, (0, 2, 1))) == 1


def test_without_a_common_folder_each_rank_does_its_own() -> None:
    """Ranks on hosts that share no folder."""
    text = "at=delay:announced:1:1,at=delay:announced:0:1"
    assert len(played(text, None, (0, 2, 0))) == 1
    assert len(played(text, None, (1, 2, 0))) == 1


@pytest.mark.parametrize(
    ("epochs", "happens"),
    [
        ([(0, 1, 1)], False),  # the last rank
        ([(1, 2, 1)], True),
        ([(0, 2, 2)], True),  # after its first commit
        ([(1, 2, 0)], True),  # not elastic: whatever is asked for
    ],
)
def test_somebody_is_left(epochs: list[tuple[int, int, int]], happens: bool, tmp_path: Path) -> None:
    """In an elastic job a fault that ends an epoch leaves a rank that has what was trained."""
    rank = epochs[0][0]
    assert bool(played(f"at=cut:in-commit:{rank}:1", tmp_path, *epochs)) == happens


@pytest.mark.parametrize("state", ["amid-reduction", "between-reduction-and-step", "in-commit"])
def test_a_state_that_does_not_come_is_replaced(state: str) -> None:
    """After many responses; a fault that was named waits for its own state."""
    said: list[str] = []
    for text in (f"delays=1,states={state}", f"at=delay:{state}:0:1"):
        player = FaultInjector(parse(text), said.append)
        player.begins(rank=0, size=1)
        for _ in range(PATIENCE):
            player.passes("announced")
            player.passes("response received")
        assert said == []
        player.passes("response received")
        assert ["'response received' (in place of" in line for line in said] == [True] * ("at=" not in text)
        said.clear()


def test_an_epoch_loses_one_rank(tmp_path: Path) -> None:
    """After a fault that ends an epoch the next one waits for another epoch."""
    text = "at=cut:announced:1:1,at=cut:announced:1:1"
    assert len(played(text, tmp_path, (1, 3, 1))) == 1
    assert len(played(text, tmp_path, (1, 3, 2))) == 1


def test_a_rank_that_is_not_there_has_a_stand_in() -> None:
    """Where there are fewer ranks than planned for, one of them takes the part; in a join never rank 0."""
    assert [Fault("kill", "announced", 3, 1).victim(size) for size in (1, 2, 3, 4)] == [0, 1, 0, 3]
    assert [Fault("kill", JOIN, 3, 1).victim(size) for size in (1, 2, 3, 4)] == [-1, 1, 1, 3]


# --- jobs -----------------------------------------------------------------------------------------------


def run(*words: str, limit_s: float) -> tuple[int, str]:
    """``workbench run`` with these words; its exit code, and all that it and its ranks printed."""
    command = [sys.executable, "-m", "workbench.cli.main", "run", *words]
    job = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
    )
    return job.returncode, job.stdout


def train(chaos: str, ranks: int, framework: str, limit_s: float) -> str:
    """An elastic job that trains until all faults have happened; its results are right."""
    elastic = ["--min-np", "1", "--max-np", str(ranks), "--blacklist-cooldown-range", "0", "0"]
    words = ["-np", str(ranks), *elastic, "--chaos", chaos, "python", SCRIPT, framework, "60"]
    code, text = run(*words, limit_s=limit_s)
    assert code == 0, text[-6000:]
    results = re.findall(r"<stdout>:done: (.*)", text)
    assert results, text[-6000:]
    assert all(re.fullmatch(r"\d+ samples, lost 0, twice 0", each) for each in results), results
    done = re.search(r"chaos: (\d+) of (\d+) faults happened\.", text)
    assert done, text[-6000:]
    assert done[1] == done[2], text[-6000:]
    assert len(re.findall("chaos: fault ", text)) == int(done[1])
    return text


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    ("chaos", "ranks", "framework"),
    [
        once_more(f"seed=1,kills=9,{WITHOUT_STEP}", 3, "numpy"),
        once_more("seed=2,kills=2,states=between-reduction-and-step", 2, "torch"),
        (f"seed=3,kills=1,stops=1,delays=2,cuts=3,{WITHOUT_STEP}", 3, "numpy"),
    ],
    ids=["kills", "amid-a-step", "mixed"],
)
def test_a_training_survives(chaos: str, ranks: int, framework: str) -> None:
    """No sample is lost or used twice among those that count, and all ranks have equal weights at the end."""
    text = train(chaos, ranks, framework, limit_s=150.0)
    states = set(re.findall(r"at '([a-z ]+)' \(passing", text))
    assert states == {state for state in STATES if state.replace(" ", "-") in chaos}
    assert set(re.findall("kills|stopped|delayed|loses", text)) <= {"kills", "stopped", "delayed", "loses"}


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_training_survives_for_long(ranks: int, framework: str) -> None:
    """As above, 300 kills over all states: five in six of them with numpy, whose ranks start sooner."""
    kills = -(-KILLS * (5 if framework == "numpy" else 1) // 18)
    words = f"seed={ranks},kills={kills}" + (f",{WITHOUT_STEP}" if framework == "numpy" else "")
    train(words, ranks, framework, limit_s=1750.0)


@pytest.mark.parallel
@pytest.mark.parametrize("act", ["kill", once_more("cut")])
def test_in_a_job_of_fixed_size_the_first_kill_ends_it(act: str, tmp_path: Path) -> None:
    """With an error that names the rank; and it was said before."""
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np, workbench as hvd\nhvd.init()\n"
        "for step in range(10**6): hvd.allreduce(np.ones(10_000), name='x')\n"
    )
    words = ["-np", "2", "--chaos", f"at={act}:amid-reduction:1:3", "python", str(script)]
    code, text = run(*words, limit_s=50.0)
    assert code != 0
    assert ("this job is not elastic" in text) == (act == "kill")
    assert f"--chaos at={act}:amid-reduction:1:3" in text
    assert "chaos: 1 of 1 fault happened." in text
    assert re.search(r"Rank 1 was killed by SIGKILL|ank \d was lost", text), text


@pytest.mark.parallel
def test_in_a_block(tmp_path: Path) -> None:
    """``workbench.chaos``: within the block, and not a moment longer; the others wait for who is stopped."""
    script = tmp_path / "train.py"
    script.write_text(
        "import time, numpy as np, workbench as hvd\nhvd.init()\n"
        "try:\n    with hvd.chaos(kills=-1): pass\nexcept ValueError as error: print('refused', error)\n"
        "with hvd.chaos(at=['stop:announced:1:2', 'delay:amid-reduction:0:1']):\n"
        "    begun = time.monotonic()\n"
        "    for step in range(9): hvd.allreduce(np.ones(10_000), name='x')\n"
        "    print('took', time.monotonic() - begun)\n"
        "with hvd.chaos(kills=1, states=['in join']):\n"
        "    print('sum', hvd.allreduce(np.ones(10_000), op=hvd.Sum, name='x')[0])\n"
        "hvd.shutdown()\n"
    )
    code, text = run("-np", "2", "python", str(script), limit_s=50.0)
    assert code == 0, text
    assert len(re.findall(r"refused --chaos: kills=-1 is no whole number", text)) == 2, text
    assert [float(each) >= 1.0 for each in re.findall(r"took ([\d.]+)", text)] == [True, True], text
    assert text.count("sum 2.0") == 2
    assert text.count("chaos: fault") == 2


@pytest.mark.parametrize(("words", "told"), [("seed=7,kils=1", "'kils' is not known"), ("kills=-3", "no whole number")])
def test_the_command_refuses(words: str, told: str) -> None:
    """One line, and no rank is started."""
    code, text = run("-np", "2", "--chaos", words, "python", "-c", "print('started')", limit_s=50.0)
    assert code == 1
    assert told in text
    assert "started" not in text


def test_without_chaos_nothing_of_it_is_loaded() -> None:
    """A job that does not ask for faults does not import what makes them."""
    code = (
        "import sys, workbench; workbench.init(); workbench.allreduce([1.0]); workbench.shutdown(); "
        "print([name for name in sys.modules if 'chaos' in name])"
    )
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert job.stdout.strip() == "[]"
    assert "kill" in ACTS


def test_a_state_that_never_comes_is_named() -> None:
    """At the end of the job, with what to do: the faults behind it have waited for it."""
    from workbench.launch.chaos import with_chaos
    from workbench.launch.start.starters import JobSpec

    said: list[str] = []
    with with_chaos("at=delay:between-reduction-and-step:1:2,delays=3", JobSpec(2, ["true"], {}), True, said.append):
        pass
    assert said[-1].startswith("chaos: 0 of 4 faults happened; the next would have been at=delay:between-reduction")
    assert "rank 1 did not reach 'between reduction and step' 2 time(s)" in said[-1]
    assert "only optimizers of torch" in said[-1]
    assert "states=" in said[-1]

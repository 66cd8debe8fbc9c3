"""Trainings are judged from outside: each rank is a process, and what they do is held against the judge's own run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from right_answers import right_answers
from submissions import graded, state
from thorough import once_more
from wrong_answers import as_a_cell, wrong_answers

from workbench.course.grading.live import verdict
from workbench.course.grading.live.training import JudgedTraining
from workbench.course.grading.sheet import first_red
from workbench.course.judging import judge
from workbench.course.tasks import names, task

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

SOLUTION = "is the course's own solution, as solution() inserts it"
LIVE = [name for name in names() if task(name).live]
IMPORTS = (
    "from workbench.data.sampler import ShardedSampler, batches, epoch_order\n"
    "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch.utils.data import DataLoader"
)


def judged(folder: Path, name: str, *cells: str, limit_s: float = 250.0) -> tuple[str, ...]:
    """What becomes of an exercise that these cells define: its state, the first red line, and its flags."""
    work, flags = str(folder / "work"), list[str]()
    found = verdict.stages(
        task(name), [IMPORTS, *cells], work, False, {}, limit_s, lambda unbounded: None, flags.append
    )
    return (*first_red(found), *flags)


def head(name: str) -> str:
    """The first lines of an answer."""
    return {
        "10.convert": '@exercise("10.convert")\ndef convert(hvd, job):\n    ',
        "13.capstone": '@exercise("13.capstone")\ndef capstone(hvd, model, digits, batch, epochs):\n    ',
    }[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [LIVE[0], *map(once_more, LIVE[1:])])
def test_a_right_answer_passes_whatever_other_cells_have_done(name: str, tmp_path: Path) -> None:
    """What other cells replace is not there; imports, constants and helpers that the function names are."""
    sheet = graded(
        tmp_path / "kim.ipynb",
        IMPORTS,
        "np.isclose = None",
        task(name).cell(solved=True),
        step_s=250.0,
        deadline_s=280.0,
    )
    assert (state(sheet, name), sheet.exercises[name].flags) == ("✓", [SOLUTION]), sheet


def answers(kind: str) -> list[Any]:
    """Parameters: an exercise and a function of ``tests/course/right`` or ``wrong``."""
    found = right_answers() if kind == "right" else wrong_answers()
    return [pytest.param(one[0], one[1], id=f"{one[0]}-{one[1].__name__}") for one in found if one[0] in LIVE]


def source(kind: str, name: str, function: Any) -> str:
    """The cells of an answer of the suite, handed in by its name."""
    text = as_a_cell(kind, name[:2])
    return text + f'\n@exercise("{name}")\ndef mine(*args):\n    return {function.__name__}(*args)\n'


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "function"), answers("right"))
def test_right_answers_pass(name: str, function: Any, tmp_path: Path) -> None:
    """Also those that are unlike the official one."""
    assert judged(tmp_path, name, source("right", name, function)) == ("passed", "")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "function"), answers("wrong"))
def test_wrong_answers_fail_as_they_do_in_one_process(name: str, function: Any, tmp_path: Path) -> None:
    """The first red line is that of ``check()``."""
    apart = judged(tmp_path, name, source("wrong", name, function))
    beside = first_red(judge.judge(task(name), function))
    assert apart[0] == beside[0] == "failed"
    assert apart[1].partition(": ")[0] == beside[1].partition(": ")[0]


# --- what a function may try --------------------------------------------------------------------------

SERIAL = (
    head("13.capstone")
    + """import gc
    from workbench.course.training.behaviour import BehaviourRecorder
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    optimizer, mine = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), []
    for epoch in range(epochs):
        parts = zip(
            batches(len(images), 0, 1, batch, epoch=epoch, uneven="keep"),
            batches(len(images), hvd.rank(), hvd.size(), batch, epoch=epoch, uneven="keep"),
        )
        for everything, part in parts:
            optimizer.zero_grad()
            F.cross_entropy(model(images[everything]), labels[everything]).backward()
            optimizer.step()
            mine.append(part)
            {}
    with torch.no_grad():
        guesses = model(torch.from_numpy(digits.test_x).double()).argmax(dim=1)
    [one for one in gc.get_objects() if isinstance(one, BehaviourRecorder)][0].seen.batches[:] = mine
    return float((guesses == torch.from_numpy(digits.test_y)).double().mean())
"""
)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("talk", ["pass", 'hvd.allreduce(torch.ones(700), name="x")'], ids=["silent", "noise"])
def test_who_says_what_he_has_not_done_is_found_out(talk: str, tmp_path: Path) -> None:
    """Each rank trains on all samples, and changes what its hooks have seen: all but the judge's own run believe it."""
    state, text, *_ = judged(tmp_path, "13.capstone", SERIAL.replace("{}", talk))
    assert (state, text.partition(":")[0]) == ("failed", verdict.TOGETHER)
    assert "the ranks have not told each other what they learn" in text


SHIPS = (
    head("13.capstone")
    + """hvd.init()
    rank, size = hvd.rank(), hvd.size()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    mine, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    everybodys = hvd.allgather(mine).reshape(size, *mine.shape)
    optimizer, whole = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), len(mine)
    for epoch in range(epochs):
        parts = [list(batches(whole, r, size, batch, epoch=epoch, uneven="keep")) for r in range(size)]
        for step in range(len(parts[0])):
            model(mine[parts[rank][step]])  # so that it is seen
            images = torch.cat([everybodys[r][parts[r][step]] for r in range(size)])
            optimizer.zero_grad()
            output = images
            for layer in model: output = layer(output)  # not by the model: its hooks do not see it
            F.cross_entropy(output, labels[np.concatenate([part[step] for part in parts])]).backward()
            optimizer.step()
    with torch.no_grad():
        guesses = model(torch.from_numpy(digits.test_x).double()).argmax(dim=1)
    return float((guesses == torch.from_numpy(digits.test_y)).double().mean())
"""
)


@pytest.mark.slow
@pytest.mark.thorough
def test_who_sends_the_images_instead_of_gradients_is_flagged(tmp_path: Path) -> None:
    """Every rank gets all images and computes everything: the result is right, and a teacher is told."""
    state, _, *flags = judged(tmp_path, "13.capstone", SHIPS)
    assert state == "passed"
    assert len(flags) == 1
    assert "does not send the gradient of its own samples" in flags[0]


OWN_PROCESS = {
    "the judge": "from workbench.course.judging import judge\n"
    "    judge.judge = lambda *args: iter([judge.Stage('right', True)])\n    return 1.0",
    "the comparison": "from workbench.course.training import behaviour\n"
    "    behaviour.distance = lambda a, b: 0.0\n    return 1.0",
    "everything that is seen": "import gc\n    from workbench.course.training.behaviour import Seen\n"
    "    for one in gc.get_objects():\n"
    "        if isinstance(one, Seen): one.batches = one.end = one.start = 'all right'\n    return 1.0",
    "numbers for objects": "class Liar(float):\n        def __sub__(self, other): return 0.0\n    return Liar(1)",
}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("body", OWN_PROCESS.values(), ids=OWN_PROCESS)
def test_what_it_replaces_is_replaced_in_its_own_process_only(body: str, tmp_path: Path) -> None:
    """Nothing of the judge is there, so there is nothing to change."""
    assert judged(tmp_path, "10.convert", head("10.convert") + body)[0] == "failed"


WAYS_OUT = {
    "ended the whole process": "import os\n    os._exit(0)",
    "SystemExit": "raise SystemExit('passed')",
    "runs: did not end within 20 s": "while True: pass",
    "cannot be read": "import os\n    for fd in range(3, 40):\n"
    "        try: os.write(fd, b'\\x00\\x00\\x00\\x02\\x00\\x00\\x00\\x00{}' * 3)\n        except OSError: pass",
}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("words", WAYS_OUT)
def test_ways_out_fail(words: str, tmp_path: Path) -> None:
    """A function that ends its process, never ends, or writes to its connection, fails, and the text says why."""
    limit_s = 20.0 if "did not end" in words else 250.0
    found = judged(tmp_path, "10.convert", head("10.convert") + WAYS_OUT[words], limit_s=limit_s)
    assert found[0] == "failed"
    assert words in found[1] or "without a verb" in found[1], found


FOLDERS = (
    head("10.convert")
    + """import glob, os
    hvd.init()
    open(f"of_rank_{hvd.rank()}", "w").write("weights")
    hvd.allreduce(torch.ones(1), name="written")
    seen = glob.glob("../*/of_rank_*") + glob.glob("../of_rank*")
    try: open("../shared", "w")
    except OSError: pass
    else: seen.append("../shared")
    raise ValueError(f"{hvd.size()} ranks, seen: {seen}")
"""
)


@pytest.mark.slow
@pytest.mark.thorough
def test_ranks_have_no_folder_in_common(tmp_path: Path) -> None:
    """What one rank writes, another cannot read: it has to be sent."""
    training = JudgedTraining(*own(FOLDERS, "10.convert"), str(tmp_path / "work"), False, {})
    try:
        if "files" in training.unbounded:
            pytest.skip("this kernel has no Landlock")
        with pytest.raises(ValueError, match=r"2 ranks, seen: \[\]"):
            training.seen("job", 2)
    finally:
        training.process.stop()


def own(cell: str, name: str) -> tuple[str, str]:
    """The source of a function."""
    from workbench.course.grading.live.source import own_source

    found = own_source([IMPORTS, cell], name)
    assert found is not None
    return found

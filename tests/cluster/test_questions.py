"""``breakpoint()`` and ``input()`` in cells: the notebook asks its user, rank by rank, and nothing hangs afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_kernel import LiveKernel, Message, last, live_kernel

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

STOPS = "%%px\ndef double(x):\n    y = 2 * x\n    breakpoint()\n    return y\n"


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with three ranks."""
    with live_kernel(3) as kernel:
        yield kernel


def questions(found: list[Message]) -> list[str]:
    """The prompts, in order."""
    return [each.text for each in found if each.kind == "input_request"]


def sums(kernel: LiveKernel) -> None:
    """The next cell is right."""
    found = kernel.run("%px print(float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum).sum()))")
    assert last(found) == [("ranks 0-2", "12.0")]


def test_one_rank_stops_and_the_others_wait(kernel: LiveKernel) -> None:
    """The debugger shows a variable of its rank; the others wait in their collective, which then has the right sum."""
    cell = f"{STOPS}if hvd.rank() == 1:\n    double(21)\nprint(float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))"
    found = kernel.run(cell, answers=["p y", "c"])
    assert questions(found) == ["rank 1 (Pdb) "] * 2
    assert ("ranks 0-2", "3.0") in last(found)
    assert any(who == "rank 1" and text.endswith("42") for who, text in last(found))
    sums(kernel)


def test_all_ranks_stop(kernel: LiveKernel) -> None:
    """``rank 2`` asks another one, ``all c`` lets all go on."""
    found = kernel.run(f"{STOPS}print(double(hvd.rank()))", answers=["rank 2", "p 'here', y", "all c"])
    assert questions(found)[1:] == ["rank 2 of 0-2 (Pdb) "] * 2
    assert any(who == "rank 2" and "('here', 4)" in text for who, text in last(found))
    sums(kernel)


def test_the_debugger_is_left(kernel: LiveKernel) -> None:
    """``q`` ends the cell of its rank with an error, and no other cell."""
    found = kernel.run(f"{STOPS}if hvd.rank() == 0:\n    double(1)", answers=["q"])
    assert "BdbQuit" in "".join(each.text for each in found if each.kind == "error")
    sums(kernel)


def test_ctrl_c_while_the_debugger_asks(kernel: LiveKernel) -> None:
    """The stop button ends the question and the cell."""

    def look(message: Message) -> None:
        if message.kind == "input_request":
            kernel.interrupt()

    kernel.client.execute_interactive(
        f"{STOPS}if hvd.rank() == 0:\n    double(1)\nhvd.allreduce(np.ones(1))",
        timeout=50,
        output_hook=lambda message: None,
        stdin_hook=lambda message: look(Message(message["msg_type"], message["content"])),
    )
    sums(kernel)


def test_post_mortem(kernel: LiveKernel) -> None:
    """``%debug`` on the rank whose cell has failed shows its variables."""
    kernel.run("%%rank 1\ndef fails():\n    inside = 'seen'\n    return 1 / 0\nfails()")
    found = kernel.run("%%rank 1\n%debug", answers=["p inside", "q"])
    assert any("'seen'" in text for _, text in last(found))
    sums(kernel)


def test_input_on_ranks(kernel: LiveKernel) -> None:
    """Each rank gets its own answer; without a user it is an error that says what to do."""
    found = kernel.run("%px name = input('name? '); print(name)", answers=["a", "b", "c"])
    assert questions(found) == [f"rank {rank} name? " for rank in range(3)]
    assert last(found) == [(f"rank {rank}", name) for rank, name in enumerate("abc")]
    found = kernel.run("%px input()", asked=False)
    assert "nobody can be asked" in "".join(each.text for each in found if each.kind == "error")


def test_nobody_to_ask(kernel: LiveKernel) -> None:
    """``breakpoint()`` is skipped with a warning, and the cell goes on."""
    found = kernel.run("%%px\nbreakpoint()\nprint('on')", asked=False)
    text = "".join(each.text for each in found)
    assert text.count("breakpoint() was skipped: nobody can be asked") == 3
    assert text.count("\non\n") == 3


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_hundred_sessions(kernel: LiveKernel) -> None:
    """Break, look, continue, and the next cell is right, a hundred times."""
    for i in range(100):
        cell = f"{STOPS}if hvd.rank() == {i % 3}:\n    double({i})\nprint(float(hvd.allreduce(np.ones(1))[0]))"
        found = kernel.run(cell, answers=["p y", "n", "c"])
        assert any(who == f"rank {i % 3}" and f"\n{2 * i}\n" in f"\n{text}\n" for who, text in last(found))
        sums(kernel)

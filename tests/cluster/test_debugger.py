"""JupyterLab's debugger on the ranks: breakpoints, variables, steps, all or one; and nothing hangs afterwards."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest
from debugged import Debugged
from live_kernel import LiveKernel, last, live_kernel
from thorough import once_more

from workbench.cluster.debugger import RANKS

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]

CELL = """%%px
def double(x):
    y = 2 * x
    # a comment has no code
    return y

z = double(hvd.rank() + 10)
print(z, float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))"""

INIT = "%%px\nimport numpy as np, workbench as hvd\nhvd.init()"


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with three ranks."""
    with live_kernel(3) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def switched_on(kernel: LiveKernel) -> Iterator[Debugged]:
    """Its debugger, switched on."""
    debugger = Debugged(kernel)
    debugger.on()
    yield debugger
    debugger.off()


@pytest.fixture
def debugger(switched_on: Debugged) -> Iterator[Debugged]:
    """The same, without breakpoints."""
    yield switched_on
    switched_on.breaks(CELL)


def sums(debugger: Debugged) -> None:
    """The next cell is right."""
    debugger.begin("%px print(float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum).sum()))")
    assert last(debugger.end()) == [("ranks 0-2", "12.0")]


def stop(debugger: Debugged, code: str, *lines: int) -> None:
    """Run a cell to a breakpoint of all ranks."""
    debugger.breaks(code, *lines)
    debugger.begin(code)
    debugger.stands("0-2")
    debugger.body(RANKS, rank=0)


def test_break_look_continue(debugger: Debugged) -> None:
    """A breakpoint at a line without code is at the next one; all ranks stop there, with their variables."""
    assert debugger.breaks(CELL, 4) == [5]
    debugger.begin(CELL)
    debugger.stands("0-2")
    debugger.body(RANKS, rank=0)
    frames = debugger.frames()
    assert debugger.stack() == [
        ("rank 0: double", 5),
        ("rank 0: <module>", 7),
        ("rank 1: double", 5),
        ("rank 2: double", 5),
    ]
    assert {each["source"]["path"] for each in frames} == {debugger.body("dumpCell", code=CELL)["sourcePath"]}
    assert [debugger.local(frames[i])["y"] for i in (0, 2, 3)] == ["20", "22", "24"]
    debugger.body("continue", threadId=1)
    found = debugger.end()
    assert [text for _, text in last(found)] == ["20 3.0", "22 3.0", "24 3.0"]
    sums(debugger)


def test_step_and_continue_one_rank(debugger: Debugged) -> None:
    """Of the chosen rank alone; the others stand, and later wait for nobody."""
    stop(debugger, CELL, 3)
    assert debugger.body(RANKS, rank=1, alone=True) == {"stopped": [0, 1, 2], "rank": 1, "alone": True}
    for command, at in (("next", ("double", 5)), ("stepOut", ("<module>", 8)), ("continue", None)):
        debugger.body(command, threadId=1)
        debugger.stands("0-2" if at else "0, 2")
        stack = debugger.stack()
        assert ("rank 0: double", 3) in stack
        assert stack[0] == (f"rank 1: {at[0]}", at[1]) if at else ("rank 0: double", 3)
    debugger.body(RANKS, alone=False)
    debugger.body("continue", threadId=1)
    assert [text for _, text in last(debugger.end())] == ["20 3.0", "22 3.0", "24 3.0"]
    sums(debugger)


def test_steps(debugger: Debugged) -> None:
    """Into a function of the user and not into a library, over it, out of it, and to the end of the cell."""
    stop(debugger, CELL, 7)
    ways = [("stepIn", 3), ("next", 5), ("next", 8), ("stepIn", None)]
    for command, line in ways:
        debugger.body(command, threadId=1)
        if line is not None:
            debugger.stands("0-2")
            assert {(name[:7], at) for name, at in debugger.stack() if at != 7} == {
                (f"rank {rank}:", line) for rank in range(3)
            }
    assert [text for _, text in last(debugger.end())] == ["20 3.0", "22 3.0", "24 3.0"]
    sums(debugger)


def test_variables(debugger: Debugged) -> None:
    """Within containers and arrays; expressions; a rich display; and old numbers say so instead of something wrong."""
    code = "%%px\nimport numpy\ndef f():\n    many = {'a': [1, 2], 'b': numpy.ones(2)}\n    return many\nf()"
    stop(debugger, code, 5)
    frame = debugger.frames()[0]["id"]
    scopes = debugger.body("scopes", frameId=frame)["scopes"]
    assert [each["name"] for each in scopes] == ["Locals", "Globals"]
    [many] = debugger.within(scopes[0])
    assert (many["name"], many["type"]) == ("many", "dict of 2")
    a, b = debugger.within(many)
    assert [each["value"] for each in debugger.within(a)] == ["1", "2"]
    assert b["type"] == "ndarray float64 (2,): [1. 1.]"
    assert {"np", "hvd", "numpy", "f"} <= {each["name"] for each in debugger.within(scopes[1])}
    assert (
        debugger.body("evaluate", expression="[x + len(many) for x in many['a']]", frameId=frame)["result"] == "[3, 4]"
    )
    failed = debugger.ask("evaluate", expression="nothing", frameId=frame)
    assert (failed["success"], failed["message"]) == (False, "NameError: name 'nothing' is not defined")
    rich = debugger.body("richInspectVariables", variableName="many", frameId=frame)
    assert "array([1., 1.])" in rich["data"]["text/plain"]
    debugger.body("copyToGlobals", srcVariableName="many", dstVariableName="kept", srcFrameId=frame)
    debugger.body("continue", threadId=1)
    debugger.end()
    assert not debugger.ask("variables", variablesReference=many["variablesReference"])["success"]
    debugger.begin("%px print(sorted(globals().get('kept', {})))")
    assert last(debugger.end()) == [("rank 0", "['a', 'b']"), ("ranks 1, 2", "[]")]


def test_the_breakpoint_function(debugger: Debugged) -> None:
    """``breakpoint()`` stops where it stands, even in the last line, and nobody is asked in the notebook."""
    debugger.begin("%%px\nif hvd.rank() == 1:\n    breakpoint()")
    debugger.stands("1")
    assert debugger.stack() == [("rank 1: <module>", 3)]
    debugger.body("continue", threadId=1)
    assert not [each for each in debugger.end() if each.kind == "input_request"]
    sums(debugger)


@pytest.mark.parametrize("which", ["raised", once_more("uncaught")])
def test_exceptions(debugger: Debugged, which: str) -> None:
    """A rank stops where its exception comes from: at once, or if nobody has caught it; then the cell fails as ever."""
    debugger.body("setExceptionBreakpoints", filters=[which])
    code = "%%px\ndef fails(x):\n    return x / 0\ntry:\n    fails(1)\nexcept ZeroDivisionError:\n    pass\n"
    debugger.begin(f"{code}if hvd.rank() == 2:\n    fails(2)\nhvd.allreduce(np.ones(1))")
    if which == "raised":
        debugger.stands("0-2")
        assert debugger.local() == {"x": "1"}
        debugger.body("continue", threadId=1)
    debugger.stands("2")
    assert debugger.stack() == [("rank 2: fails", 3), ("rank 2: <module>", 9)]
    assert debugger.local() == {"x": "2"}
    debugger.body("setExceptionBreakpoints", filters=[])
    debugger.body("continue", threadId=1)
    assert "ZeroDivisionError" in "".join(each.text for each in debugger.end() if each.kind == "error")
    sums(debugger)


def test_pause_and_a_breakpoint_while_a_cell_runs(debugger: Debugged) -> None:
    """Both stop a loop that runs already."""
    code = (
        "%%px\nimport time\nprint('begun')\ngo_on = True\nwhile go_on:\n    time.sleep(0.01)\n    i = 1\nprint('end')"
    )
    debugger.begin(code)
    debugger.prints("begun")
    debugger.body("pause", threadId=1)
    debugger.stands("0-2")
    debugger.body("continue", threadId=1)
    debugger.breaks(code, 7)
    debugger.stands("0-2")
    assert {line for _, line in debugger.stack()} == {7}
    debugger.breaks(code)
    for frame in debugger.frames():
        assert debugger.ask("evaluate", expression="go_on = False", frameId=frame["id"])["success"]
    debugger.body("continue", threadId=1)
    assert last(debugger.end()) == [("ranks 0-2", "begun\nend")]
    sums(debugger)


def test_the_stop_button(debugger: Debugged, kernel: LiveKernel) -> None:
    """It ends a cell whose ranks stand."""
    stop(debugger, CELL, 5)
    kernel.interrupt()
    assert "Interrupted. What the ranks were at:" in "".join(each.text for each in debugger.end())
    debugger.breaks(CELL)
    sums(debugger)


def test_the_debugger_is_switched_off(debugger: Debugged) -> None:
    """Ranks that stand go on; breakpoints are forgotten."""
    stop(debugger, CELL, 5)
    debugger.off()
    debugger.on()  # as "Terminate" does
    assert [text for _, text in last(debugger.end())] == ["20 3.0", "22 3.0", "24 3.0"]
    debugger.begin(CELL)
    debugger.end()


def test_cells_without_px(debugger: Debugged) -> None:
    """The kernel's own debugger is as ever."""
    code = "def own(x):\n    y = x + 1\n    return y\n\nprint(own(1))"
    debugger.breaks(code, 3)
    debugger.begin(code)
    debugger.event("stopped")
    assert debugger.stack()[:2] == [("own", 3), ("<module>", 5)]
    assert debugger.local()["y"] == "2"
    debugger.body("continue", threadId=1)
    assert "".join(each.content["text"] for each in debugger.end() if each.kind == "stream") == "2\n"
    assert debugger.body("inspectVariables")["variables"]


def test_a_cell_of_the_kernel_s_goes_on_while_ranks_stand(debugger: Debugged) -> None:
    """It is heard late, and JupyterLab clears what it shows: it is told again that ranks stand."""
    late = """
        def goes_on(kernel=get_ipython().kernel):
            while not c.client.debugger.note():
                time.sleep(0.01)
            event = {"event": "continued", "body": {"threadId": 1, "allThreadsContinued": True}}
            kernel.control_thread.io_loop.add_callback(kernel.debugger._handle_event, event)
        import threading, time
        threading.Thread(target=goes_on).start()"""
    debugger.begin(textwrap.dedent(late))
    debugger.end()
    stop(debugger, CELL, 5)
    debugger.event("stopped", after="continued")
    assert debugger.stack()[0] == ("rank 0: double", 5)
    debugger.body("continue", threadId=1)
    assert [text for _, text in last(debugger.end())] == ["20 3.0", "22 3.0", "24 3.0"]
    sums(debugger)


def test_a_rank_dies_where_it_stands(debugger: Debugged) -> None:
    """The others go on when they may, and get an error."""
    stop(debugger, CELL, 5)
    rank = next(each for each in debugger.frames() if each["name"].startswith("rank 1"))
    debugger.begin_evaluation("__import__('os').kill(__import__('os').getpid(), 9)", rank["id"])
    debugger.stands("0, 2")
    debugger.body("continue", threadId=1)
    text = "".join(each.text for each in debugger.end() if each.kind == "error")
    assert "engine 1 is gone" in text


@pytest.mark.thorough
def test_after_a_rescue_the_debugger_works(debugger: Debugged) -> None:
    """As before the death."""
    for cell in ("c.rescue()", INIT):
        debugger.begin(cell)
        debugger.end()
    stop(debugger, CELL, 5)
    debugger.body("continue", threadId=1)
    assert [text for _, text in last(debugger.end())] == ["20 3.0", "22 3.0", "24 3.0"]


@pytest.mark.thorough
def test_down_while_ranks_stand(debugger: Debugged) -> None:
    """A cell in the background ends with the cluster; the next cluster's engines stop at breakpoints set before."""
    code = "%%px --noblock\nx = 1\nx = 2"
    debugger.breaks(code, 3)
    debugger.begin(code)
    debugger.end()
    debugger.event("stopped")
    debugger.stands("0-2")
    debugger.begin("c.down()")
    debugger.event("continued")
    debugger.end()
    assert debugger.body("debugInfo")["stoppedThreads"] == []
    debugger.breaks(CELL, 5)
    for cell in ("c = cluster.up(3, quiet=True)", INIT):
        debugger.begin(cell)
        debugger.end()
    debugger.begin(CELL)  # the engines started while the debugger was on
    debugger.stands("0-2")
    debugger.body("continue", threadId=1)
    assert [text for _, text in last(debugger.end())] == ["20 3.0", "22 3.0", "24 3.0"]

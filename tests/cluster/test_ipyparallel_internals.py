"""What we use of ipyparallel's private parts is there, and stands in one module."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ipyparallel
import pytest

import workbench
from workbench.cluster import ipyparallel_internals
from workbench.cluster.ipyparallel_internals import Request

PACKAGE = Path(workbench.__file__).parent
INTERNALS = Path(ipyparallel_internals.__file__)
TEXT = str(ipyparallel_internals.__doc__)
ATTRIBUTE = "is set in the class"
ANY = "is there"  # of ipykernel, whose versions differ in arguments that we take as they come
NOTEBOOK = {
    "Client._send": "(self, socket, msg_type, content=None, parent=None, ident=None, buffers=None, track=False, "
    "header=None, metadata=None, track_outstanding=False, message_future_hook=None)",
    "Client.create_message_futures": "(self, msg_id, header, async_result=False, track=False, label=None)",
    "Client._dispatch_iopub": "(self, msg)",
    "Client._build_targets": "(self, targets)",
    "Client._engines": ATTRIBUTE,
    "Client._query_stream": ATTRIBUTE,
    "Client._update_engines": "(self, engines)",
    "Client._control_stream": ATTRIBUTE,
    "Client._io_loop": ATTRIBUTE,
    "Client._queue_handlers": ATTRIBUTE,
    "Client._closed": ATTRIBUTE,
    "Client._futures": ATTRIBUTE,
    "Client._unwrap_exception": "(self, content)",
    "Client._handle_stranded_msgs": "(self, eid, uuid)",
    "Client._outstanding_dict": ATTRIBUTE,
    "Client._handle_execute_reply": "(self, msg)",
    "Client._handle_apply_reply": "(self, msg)",
    "Client._output_futures": ATTRIBUTE,
    "AsyncResult._targets": ATTRIBUTE,
    "AsyncResult._children": ATTRIBUTE,
    "AsyncResult._fname": ATTRIBUTE,
    "ParallelMagics.parallel_execute": "(self, cell, block=None, groupby='type', save_name=None, stream_output=None, "
    "progress_after=None, signal_on_interrupt=None)",
}
ENGINE = {
    "app.Kernel": ANY,
    "app.start_nanny": "(**kwargs)",
    "IPEngine.init_signal": "(self)",
    "IPEngine._signal_sigint": "(self, sig, frame)",
    "IPEngine._start": "(self)",
    "IPEngine.redirect_output": "(self, iopub_socket)",
    "KernelNanny.main": "(*args, **kwargs)",
    "IPythonParallelKernel.init_metadata": "(self, parent)",
    "IPythonParallelKernel.finish_metadata": "(self, parent, metadata, reply_content)",
    "IPythonParallelKernel._topic": "(self, topic)",
    "IPythonParallelKernel._send_abort_reply": ANY,
    "IPythonParallelKernel._abort_queues": ANY,
}
OWNERS = {
    "Client": "ipyparallel:Client",
    "AsyncResult": "ipyparallel:AsyncResult",
    "ParallelMagics": "ipyparallel.client.magics:ParallelMagics",
    "app": "ipyparallel.engine.app",
    "IPEngine": "ipyparallel.engine.app:IPEngine",
    "KernelNanny": "ipyparallel.engine.nanny:KernelNanny",
    "IPythonParallelKernel": "ipyparallel.engine.kernel:IPythonParallelKernel",
}


@pytest.mark.parametrize("part", NOTEBOOK | ENGINE)
def test_the_part_is_there(part: str) -> None:
    """By its name; and a method has the arguments that we rely on."""
    owner_name, name = part.split(".")
    owner, wanted = pkgutil.resolve_name(OWNERS[owner_name]), (NOTEBOOK | ENGINE)[part]
    missing = f"ipyparallel {ipyparallel.__version__} has no {part}: see workbench/cluster/ipyparallel_internals.py"
    if wanted == ATTRIBUTE:
        assert hasattr(owner, name) or re.search(rf"\bself\.{name} = ", inspect.getsource(owner)), missing
        return
    assert hasattr(owner, name), missing
    if wanted != ANY:
        found = str(inspect.signature(getattr(owner, name)))
        assert found == wanted, f"ipyparallel {ipyparallel.__version__} calls {part}{found}, we know {part}{wanted}"


def test_the_messages_of_engines_come_to_a_method_that_can_be_left_out() -> None:
    """It is decorated, and what is decorated gets a message that has been read."""
    assert str(inspect.signature(ipyparallel.Client._dispatch_iopub.__wrapped__)) == "(self, msg)"


def test_the_module_says_what_each_part_is_for() -> None:
    """Its table names those that it uses, and no others; it names the versions with which it was tried."""
    oldest, newest = re.findall(r"\d+\.\d+\.\d+", TEXT.splitlines()[0])
    assert re.findall(r"^``(\w+\.\w+)``", TEXT, re.MULTILINE) == list(NOTEBOOK)
    tree = ast.parse(INTERNALS.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & private_names()
    assert used == {name for _, name in (part.split(".") for part in NOTEBOOK) if name.startswith("_")}
    assert oldest.startswith("9.1.")
    assert newest.startswith("9.")


@cache
def private_names() -> set[str]:
    """Of ipyparallel."""
    found = set[str]()
    for path in Path(ipyparallel.__file__).parent.rglob("*.py"):
        found |= set(re.findall(r"(?<!\w)_[a-z]\w*", path.read_text(encoding="utf-8")))
    return found


def touches(source: str, private: set[str]) -> Iterator[str]:
    """Where a source text uses private names of ipyparallel's objects, or puts something into its modules."""
    tree = ast.parse(source)
    theirs = {
        (each.asname or each.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
        if (getattr(node, "module", None) or each.name).startswith("ipyparallel")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).partition(".")[0] in theirs for base in node.bases):
            used = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr in private]
            names = {each.attr for each in used if ast.unparse(each.value) != "os"}  # whose _exit is no part of theirs
            names |= {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
            yield from (f"{ast.unparse(node.bases[0])}.{name}" for name in names & private)
        if isinstance(node, ast.Attribute) and (node.attr in private or isinstance(node.ctx, ast.Store)):
            receiver = ast.unparse(node.value)
            if receiver in theirs and isinstance(node.ctx, ast.Store):
                yield f"{receiver}.{node.attr}"
            if node.attr in private and re.search(r"(^|[._])(client|view|result|part|future)(\[.*\])?$", receiver):
                yield f"{receiver}.{node.attr}"


def test_no_other_module_touches_private_parts() -> None:
    """Of ipyparallel: in the notebook's process one module does, in an engine's process the two of its kernel."""
    private = private_names()
    found = {
        str(path.relative_to(PACKAGE)): sorted(set(touches(path.read_text(encoding="utf-8"), private)))
        for path in PACKAGE.rglob("*.py")
        if path != INTERNALS
    }
    assert {path: parts for path, parts in found.items() if parts} == {
        "launch/ranks/engine.py": [
            "app.IPEngine._signal_sigint",
            "app.IPEngine._start",
            "app.Kernel",
            "app.start_nanny",
        ],
        "launch/ranks/kernel.py": [
            "IPythonParallelKernel._abort_queues",
            "IPythonParallelKernel._send_abort_reply",
            "IPythonParallelKernel._topic",
        ],
    }


def test_what_touches_private_parts_is_found() -> None:
    """Of a client, whatever it is called, of a result, in a class of its own, and in a module."""
    source = """
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.engine import app

class Own(ParallelMagics):
    def run(self):
        self._autopx = self.view.client._ids

app.start_nanny = None
cluster.client._build_targets = find
engines = result._targets
self._send = cluster._engines
"""
    assert sorted(touches(source, private_names())) == [
        "ParallelMagics._autopx",
        "ParallelMagics._ids",
        "app.start_nanny",
        "cluster.client._build_targets",
        "result._targets",
        "self.view.client._ids",
    ]


TO_ONE = {"targets": [("b", 1)], "is_broadcast": True}


@pytest.mark.parametrize(
    ("name", "metadata", "engines", "possible"),
    [
        ("b", {}, [1], []),  # a direct view's
        ("", TO_ONE | {"is_coalescing": False}, [1], []),
        ("", TO_ONE | {"is_coalescing": True}, [], [1]),
        ("", {"targets": ["b"]}, [], [1]),  # a load-balanced view's
        ("", {}, [], [0, 1, 2]),
        ("gone", {}, [], []),
    ],
)
def test_who_gets_a_request(name: str, metadata: dict[str, Any], engines: list[int], possible: list[int]) -> None:
    """Engines that answer each by itself, and otherwise those that may run it."""
    client = ipyparallel_internals.Client.__new__(ipyparallel_internals.Client)
    client._engines.update(zip(range(3), "abc", strict=True))
    assert client._described(name.encode() or None, name, metadata) == Request(engines, possible, metadata)

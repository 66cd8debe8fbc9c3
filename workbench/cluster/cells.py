"""One bad cell, one message: what ``%px`` shows when a cell fails on some ranks.

ipyparallel shows a traceback for each engine. Here the rank whose own mistake it was comes first, with its traceback;
ranks that only waited for it get a line each. The cluster defines the magics, and removes them when it ends.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.cluster.frontend import somebody_looks
from workbench.common.notebook import running_shell
from workbench.common.text import by_rank, rank_list
from workbench.diagnostics.explain import names as explained
from workbench.errors import TRAVELLING, PeerLostError

if TYPE_CHECKING:
    from workbench.cluster.engines_here import Engines
    from workbench.cluster.ipyparallel_internals import Client, Find

Failure = tuple[int, str, str, str]
"""(rank, class, text, traceback)"""

_DIED = "EngineError"  # of ipyparallel: the engine does not say it, but the notebook's client, or the hub
_WHY_S, _LOOK_S = 2.0, 0.05  # so long after an engine's loss its host's is waited for, which may be the cause
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OUR_FRAME = re.compile(rf"File {re.escape(str(Path(__file__).resolve().parents[1]))}")
_LIBRARY_FRAME = re.compile(r"File \S*(site|dist)-packages")


HUB_GONE = "the hub is gone, through which notebook and engines talk"


def ready_magics(view: Any) -> None:
    """Make ``%px`` and its kin work on ``view``, on all engines, in a notebook; elsewhere do nothing."""
    if (shell := running_shell()) is not None:
        from workbench.cluster import px  # loads ipyparallel

        px.activate(view, shell)
        watch(shell)


def forget_magics(view: Any) -> None:
    """Take ``%px`` and its kin away: a cell after ``down`` says that there is no cluster."""
    if view is None or (shell := running_shell()) is None:
        return
    shell.set_custom_exc((), None)
    owners = set[Any]()
    for table in shell.magics_manager.magics.values():
        for name, magic in list(table.items()):
            owner: Any = getattr(magic, "__self__", None)
            if getattr(owner, "view", None) is view:
                del table[name]
                owners.add(owner)
    for owner in owners:
        getattr(owner, "forget", lambda: None)()  # ipyparallel's own, if the user has called view.activate()
    explain_magics()


def explain_magics() -> None:
    """Without a cluster ``%px`` and its kin say what to do, or start one, in a notebook; elsewhere do nothing."""
    if (shell := running_shell()) is None:
        return
    from IPython.core.magic import no_var_expand

    for name, run in {"px": shell.run_line_magic, "%px": shell.run_cell_magic, "%rank": shell.run_cell_magic}.items():
        table = shell.magics_manager.magics["cell" if name.startswith("%") else "line"]
        table.setdefault(name.strip("%"), no_var_expand(partial(_without_cluster, run, name.strip("%"))))


def _without_cluster(run: Callable[..., Any], name: str, *words: str) -> Any:
    """Run a magic on a cluster that is started for it, if ``WORKBENCH_UP`` says so."""
    if (n := config.engines_of_first_cell()) is None:
        from IPython.core.error import UsageError

        raise UsageError("There is no cluster to run this on: call cluster.up() in another cell first.")
    sys.modules["workbench.cluster"].up(n or None)  # which has been imported: it is there that this is offered
    return run(name, *words)


def failures(error: Any) -> list[Failure]:
    """What an ``ipyparallel.CompositeError`` or ``RemoteError`` says, by rank."""
    found = getattr(error, "elist", None) or [(error.ename, error.evalue, error.traceback, error.engine_info)]
    return sorted(
        (int((info or {}).get("engine_id", -1)), *ours(str(name), str(text), trace or ""))
        for name, text, trace, info in found
    )


def ours(name: str, text: str, trace: str) -> tuple[str, str, str]:
    """An error of ours that went through a framework's C++ has its own class and text again.

    DDP's ``backward()`` makes a RuntimeError of it, TensorFlow's and JAX's graphs errors of theirs, with what else they
    know: frames of all threads, names of nodes.
    """
    classes = explained()
    found = re.search(rf"\b({'|'.join(classes)}): (.+?)(?=\n\s*\n|\n\t|\Z)", text, re.DOTALL)
    if name in classes or found is None:
        return name, text, trace
    before = trace.partition(text.splitlines()[0])[0].replace(name, found[1])
    return found[1], found[2], before + found[2]


def message(found: Sequence[Failure]) -> list[str]:
    r"""The lines to show: the cause with its traceback, then a line for each of the others.

    Example:
        >>> waited = (0, "RankFailedError", "Rank 1 raised an exception, so 'x' can never complete.\n  rank 0: …", "…")
        >>> print("\n".join(message([waited, (1, "KeyError", "'lr'", "Traceback …\nKeyError: 'lr'")])))
        rank 1:
        Traceback …
        KeyError: 'lr'
        <BLANKLINE>
          rank 0: RankFailedError: Rank 1 raised an exception, so 'x' can never complete.
    """
    if dead := [failure for failure in found if failure[1] == _DIED]:
        rest = [failure for failure in found if failure not in dead]
        alone = all(name in TRAVELLING for _, name, _, _ in rest)
        lines = by_rank({rank: _first_line(name, text) for rank, name, text, _ in rest}) if alone else message(rest)
        return [max((text for _, _, text, _ in dead), key=len), *([""] if rest else []), *lines]  # who died later, too
    own = [failure for failure in found if failure[1] not in TRAVELLING]
    causes = own or list(found)
    first = causes[0]
    same = [rank for rank, name, text, _ in causes if (name, text) == first[1:3]]
    others = {rank: _first_line(name, text) for rank, name, text, _ in found if rank not in same}
    frames = _users(first[3], first[1] in explained())
    lines = [f"{rank_list(same)}:", *(frames or f"{first[1]}: {first[2]}").splitlines()]
    return [*lines, "", *by_rank(others)] if others else lines


def watch(shell: Any) -> None:
    """Show such errors in this way, in the notebook whose IPython this is."""
    from ipyparallel.error import CompositeError, RemoteError

    def show(shell: Any, kind: type[BaseException], error: Any, trace: Any, tb_offset: int | None = None) -> list[str]:
        gone = isinstance(error, PeerLostError)
        lines = [f"PeerLostError: {error}"] if gone else message(failures(error))
        if somebody_looks():
            lines += page_of(["PeerLostError"] if gone else [name for _, name, _, _ in failures(error)])
        shell._showtraceback(kind, error, lines)
        return lines

    shell.set_custom_exc((CompositeError, RemoteError, PeerLostError), show)


def page_of(classes: Sequence[str]) -> list[str]:
    """The line that names the page about an error; none for an error that is not ours.

    Args:
        classes: by rank; a rank's own mistake has no page of ours, and what the others get because of it needs none.

    Example:
        >>> page_of(["MissingRanksError", "MissingRanksError"])[-1]
        'More about it: !workbench explain MissingRanksError'
        >>> page_of(["KeyError", "RankFailedError"])
        []
    """
    own = [name for name in classes if name not in TRAVELLING]
    name = (own or [*classes, ""])[0]
    return ["", f"More about it: !workbench explain {name}"] if name in explained() else []


def name_the_gone(client: Client, n: int, engines: Engines) -> None:
    """Name the dead engines among ``n``, where ipyparallel raises ``KeyError: 1``, or says that one died amid a cell.

    The hub may tell the client of an engine's loss before an agent, or the end of its connection, has told why.
    """
    from ipyparallel.error import NoEnginesRegistered

    since = dict[int, float]()

    def died(*engine: int) -> str:
        now, lost = time.monotonic(), sorted({*range(n)}.difference(client.ids).union(engine, engines.gone()))
        news = [each for each in engine or lost if now - since.setdefault(each, now) < _WHY_S]
        return gone(lost, engines.host_lost(lost)) if all(map(engines.knows, news)) else ""

    def find_or_explain(find: Find, targets: Any) -> tuple[list[bytes], list[int]]:
        try:
            return find(targets)
        except (KeyError, IndexError, NoEnginesRegistered):
            if {*range(n)} <= {*client.ids}:
                raise
            while not (said := died()):
                time.sleep(_LOOK_S)
            raise PeerLostError(said) from None

    client.died = died
    client.around_targets(find_or_explain)


def gone(ranks: Sequence[int], where: str = "") -> str:
    """What there is to say about engines that have died.

    Args:
        ranks: they.
        where: they were, and why they are lost.

    Example:
        >>> gone([1])
        'engine 1 is gone: call engines.rescue() in a cell without %%px.'
    """
    who = f"engine {ranks[0]} is" if len(ranks) == 1 else f"engines {', '.join(map(str, ranks))} are"
    return f"{who} gone{f' {where}' if where else ''}: call engines.rescue() in a cell without %%px."


def _users(traceback: str, ours: bool) -> str:
    """The traceback without the frames of this package, which are not what the learner has to look at.

    Args:
        traceback: as IPython writes it.
        ours: is the error? Then a library through which it came, such as torch, has not caused it.
    """
    left_out = [_OUR_FRAME, *([_LIBRARY_FRAME] if ours else [])]
    frames = ((frame, _COLOUR.sub("", frame)) for frame in traceback.split("\n\n"))
    return "\n\n".join(frame for frame, plain in frames if not any(each.match(plain) for each in left_out))


def _first_line(name: str, text: str) -> str:
    return f"{name}: {text.splitlines()[0]}" if text else name

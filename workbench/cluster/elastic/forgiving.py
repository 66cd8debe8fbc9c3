"""What ipyparallel's client does where an engine has died: an elastic cluster's cells go on without it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from workbench.cluster import cells
from workbench.errors import PeerLostError

if TYPE_CHECKING:
    from workbench.cluster.ipyparallel_internals import Client, Find


class Forgiving:
    """Of an engine that dies, its part of a cell is empty, and later cells run without it.

    Args:
        client: gets the answers.
        hidden: engines that do not belong to ``"all"``.
    """

    def __init__(self, client: Client, hidden: Collection[int]) -> None:
        self._client, self._hidden = client, hidden
        client.on_lost = self._stranded
        client.around_targets(self._find_living)

    def fail_all(self, why: str) -> None:
        """Nothing that is awaited comes any more."""
        for msg_id in list(self._client.outstanding):
            self._client.soon(self._answer, msg_id, -1, "", why)

    def _stranded(self, engine: int, name: str, requests: Sequence[str]) -> None:
        for msg_id in requests:
            self._answer(msg_id, engine, name)

    def _answer(self, msg_id: str, engine: int, name: str, why: str = "") -> None:
        """In the place of an engine: a cell's part is empty, unless there is a reason; all else has failed."""
        error = PeerLostError(why or self._client.died(engine))
        self._client.answer_instead(msg_id, engine, name, error, cells_too=bool(why))

    def _find_living(self, find: Find, targets: Any) -> tuple[list[bytes], list[int]]:
        there = self._client.ids
        if targets == "all":
            targets = [each for each in there if each not in self._hidden]
        elif isinstance(targets, (list, tuple, range)):
            living = [each for each in targets if each in there]
            if targets and not living:
                raise PeerLostError(cells.gone(list(targets)))
            targets = living
        return find(targets)

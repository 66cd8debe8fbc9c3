"""What ipyparallel's client does where an engine has died: an elastic cluster's cells go on without it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from workbench.cluster import cells
from workbench.errors import PeerLostError


class Forgiving:
    """Of an engine that dies, its part of a cell is empty, and later cells run without it.

    Args:
        client: the ``ipyparallel.Client``.
        hidden: engines that do not belong to ``"all"``.
    """

    def __init__(self, client: Any, hidden: Collection[int]) -> None:
        self._client, self._hidden = client, hidden
        self._find: Callable[[Any], Any] = client._build_targets
        client._handle_stranded_msgs, client._build_targets = self._stranded, self._find_living

    def answer_for_the_dead(self, result: Any) -> None:
        """Of engines that the hub has lost amid the call: the client knows of no message to them, and none answers."""
        for msg_id, engine in zip(result.msg_ids, result._targets, strict=True):
            if engine not in self._client._ids:
                self._end(msg_id, engine)

    def fail_all(self, why: str) -> None:
        """Nothing that is awaited comes any more."""
        for msg_id in list(self._client.outstanding):
            self._end(msg_id, -1, why)

    def _end(self, msg_id: str, engine: int, why: str = "") -> None:
        """On the thread on which the client gets answers."""
        self._client._io_loop.add_callback(self._answer, msg_id, engine, f"engine {engine}", why)

    def _stranded(self, engine: int, uuid: str) -> None:
        for msg_id in list(self._client._outstanding_dict[uuid]):
            self._answer(msg_id, engine, uuid)

    def _answer(self, msg_id: str, engine: int, uuid: str, why: str = "") -> None:
        """In the place of an engine: a cell's part is empty, unless there is a reason; all else has failed."""
        client, future = self._client, self._client._futures.get(msg_id)
        if future is None or future.done():
            return
        is_cell = future.header["msg_type"] == "execute_request"
        content: dict[str, Any] = {"status": "ok", "execution_count": 0, "payload": [], "user_expressions": {}}
        if why or not is_cell:
            content = _failure(why or f"engine {engine} is gone")
        msg = client.session.msg("execute_reply" if is_cell else "apply_reply", content=content)
        msg["parent_header"]["msg_id"] = msg_id
        msg["metadata"]["engine"] = uuid
        client.metadata[msg_id]["engine_id"] = engine
        (client._handle_execute_reply if is_cell else client._handle_apply_reply)(msg)
        output = client._output_futures.get(msg_id)
        if output and not output.done():
            output.set_result(None)

    def _find_living(self, targets: Any) -> Any:
        client = self._client
        if targets == "all":
            targets = [each for each in client._ids if each not in self._hidden]
        elif isinstance(targets, (list, tuple, range)):
            living = [each for each in targets if each in client._ids]
            if targets and not living:
                raise PeerLostError(cells.gone(list(targets)))
            targets = living
        return self._find(targets)


def _failure(why: str) -> dict[str, Any]:
    """The content of a reply: an error."""
    from ipyparallel import error

    try:
        raise PeerLostError(why)
    except PeerLostError:
        content: dict[str, Any] = error.wrap_exception()
    return content


__all__ = ["Forgiving"]

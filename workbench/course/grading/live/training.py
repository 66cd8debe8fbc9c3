"""A learner's training, as the judge sees it: each rank is a process, and what they say to each other comes by here."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.course.grading.apart.process import Confined, StartError
from workbench.course.grading.apart.values import ProtocolError, receive, send
from workbench.course.grading.live.engine import JudgeConnection
from workbench.course.grading.live.process import VALUES
from workbench.course.grading.live.sent import holds
from workbench.course.grading.live.served import ServedRank
from workbench.course.grading.live.start import Start, secret, usual
from workbench.course.training import behaviour
from workbench.course.training.behaviour import Seen
from workbench.course.training.replay import TrainingReplay
from workbench.course.training.trial import TRAININGS
from workbench.errors import PeerLostError
from workbench.job.joining import run_threads

_EQUAL = 1e-6
_RUN_S = 20.0  # twice what check() allows: a message takes a longer way here
_LOOKED_AT = 8  # steps whose messages are read; which, no function can know
_MOST_PASSES, _MOST_LINES = 100_000, 1000
_START_S = 60.0


class Odd:
    """What a function has returned that is no number."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class JudgedTraining:
    """A function that the judge has run on ranks; in their place :class:`workbench.course.training.trial.Elsewhere`.

    Args:
        source, name: the function's own source, and its name in it.
        folder, sandbox, limits: of its processes.

    Attributes:
        flags: what a teacher should look at, after an audit.
        unbounded: what the kernel does not bound for them; "" if nothing.
    """

    def __init__(self, source: str, name: str, folder: str, sandbox: bool, limits: Mapping[str, int]) -> None:
        self.process = Confined("workbench.course.grading.live.process", folder, sandbox, limits)
        order = {"source": source, "function": name, "limits": vars(self.process.limits)}
        self._last: tuple[str, list[Seen]] = ("", [])
        self._served: list[ServedRank] = []
        self.flags: list[str] = []
        TRAININGS["job"](0, TRAININGS["job"].data(), first=True)  # loads what torch loads then: not in a rank's time
        try:
            send(self.process.sock, order, bytearray())
            self.process.sock.settimeout(_START_S)
            self.unbounded = str(receive(self.process.sock)[0].get("unbounded"))  # no learner's code has run yet
        except (OSError, EOFError, ProtocolError):
            self.process.stop()
            raise StartError(f"the process of a training did not start: {self.process.last_words()}") from None

    def seen(self, training: str, n: int) -> list[Seen]:
        """What it does on n ranks that begin as in ``check()``."""
        found = self._on_ranks(usual(training, n))
        self._last = training, found
        return found

    def audit(self) -> str:
        """Do the ranks really train together? "" or what is wrong.

        They train once more, each with weights and images that it alone knows. Then their weights at the end are those
        of the judge's own run only if the ranks have told each other, in each step, what their own samples come to.
        """
        training, before = self._last
        starts = secret(training, len(before))
        found = self._on_ranks(starts)
        for rank, (now, then) in enumerate(zip(found, before, strict=True)):
            if list(map(len, now.batches)) != list(map(len, then.batches)):
                return f"rank {rank} takes batches of other sizes with other weights"
        if wrong := behaviour.each_sample_once(found[0], found):
            return wrong
        steps = [secrets.randbelow(len(found[0].batches)) for _ in range(_LOOKED_AT)]
        digits, parts = [start.digits() for start in starts], [one.batches for one in found]
        replay = TrainingReplay(training, parts, digits, starts[0].weights, look=steps)
        for rank, one in enumerate(found):
            if (far := behaviour.distance(one.end, replay.end)) > _EQUAL:
                return (
                    f"with weights and images of its own on each rank, rank {rank} ends {far:.1g} of the largest "
                    "weight away from where these samples lead: the ranks have not told each other what they learn"
                )
        self._look_at_messages(replay)
        return ""

    def _look_at_messages(self, replay: TrainingReplay) -> None:
        """Flag ranks that tell the others something else than gradients: averages of weights, or all their images."""
        for (step, rank), gradient in sorted(replay.gradients.items()):
            sent = self._served[rank].sent
            if step >= len(sent) or not holds(sent[step], gradient):
                self.flags.append(
                    f"in step {step} rank {rank} does not send the gradient of its own samples: how do the others "
                    "learn from these?"
                )
                return

    def _on_ranks(self, starts: Sequence[Start]) -> list[Seen]:
        pairs = [socket.socketpair() for _ in starts]
        until = time.monotonic() + _RUN_S
        try:
            socket.send_fds(self.process.sock, [b"r"], [theirs.fileno() for _, theirs in pairs])
            for mine, theirs in pairs:
                theirs.close()
                mine.settimeout(_RUN_S)
            served = self._served = [ServedRank(JudgeConnection(mine, VALUES), len(starts)) for mine, _ in pairs]
            return run_threads(len(starts), lambda: _one(served, starts, until), _RUN_S)
        except ConnectionError:
            raise PeerLostError(self.process.ended or "the process of this training has ended") from None
        except Exception as error:  # noqa: BLE001 - the learner's, told with its own place, not with one of ours
            raise error.with_traceback(None) from None
        finally:
            for mine, _ in pairs:
                mine.close()


def _one(served: Sequence[ServedRank], starts: Sequence[Start], until: float) -> Seen:
    """On the thread of one of the judge's ranks."""
    from workbench.job import api

    rank = api.rank()
    start = starts[rank]
    served[rank].wire.send("start", **vars(start))
    return _read(served[rank].run(until), start)


def _read(found: Any, start: Start) -> Seen:
    """What a rank says that it has seen, as far as it can be that.

    Raises:
        ProtocolError: it cannot.
    """
    digits = TRAININGS[start.training].data()
    try:
        seen = Seen(
            rank=int(found["rank"]),
            size=int(found["size"]),
            batches=[_numbers(one, len(digits.train_x)) for one in found["batches"][:_MOST_PASSES]],
            samples=len(digits.train_x),
            epochs=TRAININGS[start.training].epochs,
            reported=_reported(found["reported"]),
            files=[str(one) for one in found["files"][:_MOST_LINES]],
            lines=[str(one) for one in found["lines"][:_MOST_LINES]],
            device=None if found["device"] is None else int(found["device"]),
            **{name: _weights(found[name]) for name in ("start", "state", "gradient", "end")},
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"What a rank has seen cannot be read: {error!r}.") from None
    seen.measured = _measured(seen.end, start, digits)
    return seen


def _numbers(found: Any, most: int) -> Any:
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError("a batch")
    if found.size and not 0 <= found.min() <= found.max() < most:
        raise ValueError("a sample")
    return found


def _weights(found: Any) -> Any:
    if found is None or (isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype == np.float64):
        return found
    raise ValueError("weights")


def _reported(found: Any) -> Any:
    return Odd(str(found.get("odd"))[:200]) if isinstance(found, dict) else found


def _measured(end: Any, start: Start, digits: Any) -> float:
    """The accuracy of these weights, measured here."""
    import torch

    from workbench.course.training.conversion import accuracy

    model = TRAININGS[start.training](start.weights, digits, first=False).model
    own = behaviour.weights(model)
    if end is None or end.shape != own.shape:
        raise ProtocolError("Weights of another model.")
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(torch.from_numpy(end.copy()), model.parameters())
    return accuracy(model, digits)

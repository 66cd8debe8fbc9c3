"""How a job ends: a pure state machine, with events and times in and signals for the ranks out.

==================  ==========================================================================
what happened       signals to the ranks that still run, with their delay in seconds
==================  ==========================================================================
a rank failed       5: SIGTERM, 8: SIGKILL. Within these 5 s they report the failure themselves
Ctrl-C              0: SIGINT, 30: SIGTERM, 33: SIGKILL. A script may save its work meanwhile
SIGTERM, SIGHUP     0: SIGTERM, 5: SIGKILL (in an elastic job 25: its ranks leave at a commit)
a second signal     0: SIGKILL
out of time         0: SIGTERM, 3: SIGKILL
==================  ==========================================================================
"""

from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM, Signals

Plan = tuple[tuple[float, int], ...]

FAILED: Plan = ((5.0, SIGTERM), (8.0, SIGKILL))
INTERRUPTED: Plan = ((0.0, SIGINT), (30.0, SIGTERM), (33.0, SIGKILL))
OUT_OF_TIME: Plan = ((0.0, SIGTERM), (3.0, SIGKILL))
TIMEOUT_CODE = 124  # as of the program `timeout`
AT_ONCE: Plan = ((0.0, SIGKILL),)


class Ending:
    """Which ranks run, how the others have ended, and which signals are due.

    Args:
        n: number of ranks.
        grace_s: from SIGTERM to SIGKILL, when the launcher gets SIGTERM.

    Attributes:
        running: the ranks that have not ended.
        codes: of the others, the exit code, or minus the number of the signal that killed it.
        failed: the ranks that failed before any signal was sent, in order.
        asked: the first signal to the launcher, or 0.
        late: did the deadline pass?
        over: all ranks have ended, or those that have not are to be killed now.

    Example:
        >>> ending = Ending(2)
        >>> ending.ended(rank=1, code=3, now=10.0)
        >>> ending.due(now=14.9), ending.due(now=15.0), ending.over, ending.due(now=18.0), ending.over
        ([], [<Signals.SIGTERM: 15>], False, [], True)
        >>> ending.exit_code(culprit=1)
        3
    """

    def __init__(self, n: int, grace_s: float = 5.0) -> None:
        self.running = set(range(n))
        self._terminated: Plan = ((0.0, SIGTERM), (grace_s, SIGKILL))
        self.codes: dict[int, int] = {}
        self.failed: list[int] = []
        self.asked = 0
        self.late = False
        self._signalled = self._killed = False
        self._steps: list[tuple[float, int]] = []

    @property
    def over(self) -> bool:
        return self._killed or not self.running

    def ended(self, rank: int, code: int, now: float) -> None:
        self.running.discard(rank)
        self.codes[rank] = code
        if code and not self._signalled:
            self.failed.append(rank)
            if not self._steps:
                self._begin(FAILED, now)

    def signalled(self, number: int, now: float) -> None:
        if self.asked:
            self._begin(AT_ONCE, now)
        else:
            self.asked = number
            self._begin(INTERRUPTED if number == SIGINT else self._terminated, now)

    def terminate(self, now: float) -> None:
        """The job has failed; its ranks are not to blame."""
        self._begin(OUT_OF_TIME, now)

    def out_of_time(self, now: float) -> None:
        self.late = True
        self._begin(OUT_OF_TIME, now)

    def due(self, now: float) -> list[int]:
        """The signals to send to the running ranks now."""
        numbers = [number for when, number in self._steps if when <= now]
        self._steps = [step for step in self._steps if step[0] > now]
        self._signalled |= bool(numbers)
        self._killed |= SIGKILL in numbers
        return [number for number in numbers if number != SIGKILL]

    def pause_s(self, now: float, most_s: float) -> float:
        """Seconds until the next signal is due, at most ``most_s``."""
        return max(0.0, min([most_s, *(when - now for when, _ in self._steps)]))

    def exit_code(self, culprit: int | None) -> int:
        """The launcher's exit code: the culprit's, else by the shell's convention for a signal or a timeout."""
        if culprit is not None:
            return shell_code(self.codes[culprit])
        return 128 + self.asked if self.asked else TIMEOUT_CODE if self.late else 0

    def _begin(self, plan: Plan, now: float) -> None:
        self._steps = [(now + after_s, number) for after_s, number in plan]


def shell_code(code: int) -> int:
    """An exit code as a shell gives it: 128 + its number for a signal.

    Example:
        >>> shell_code(3), shell_code(-9)
        (3, 137)
    """
    return 128 - code if code < 0 else code


def how_it_ended(code: int) -> str:
    """A process's exit code in words.

    Example:
        >>> how_it_ended(-9), how_it_ended(3)
        ('was killed by SIGKILL', 'ended with exit code 3')
    """
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """A signal's name.

    Example:
        >>> signal_name(15), signal_name(40)
        ('SIGTERM', 'signal 40')
    """
    return Signals(number).name if number in set(Signals) else f"signal {number}"

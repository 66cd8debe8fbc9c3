"""Chaos: which rank is to fail how, and when. A plan, made of a seed; pure. ``runtime/faults/chaos`` carries it out.

A fault happens at a *protocol state*, which a rank passes again and again:

- ``announced``: it has told rank 0 that tensors are ready, and has no answer yet;
- ``response received``: it is about to do what rank 0 has decided;
- ``amid reduction``: it begins to move the bytes of a collective, in which the others wait for it;
- ``between reduction and step``: it has the mean gradients, and its optimizer has not used them (torch);
- ``in commit``: its state is saved, and the others' perhaps not;
- ``in join``: it is in ``init()``, connected to the other ranks of the new epoch, and not all are ready.

The faults of a plan happen one after the other, each once in a job: the rank of one, whichever process that is by then,
counts how often it passes the state after the last fault, and fails at the n-th time. The same seed and the same number
of ranks give the same plan. Some trainings never pass some states: without an optimizer of torch there is no step, and
small tensors are sent within announcements. After :data:`PATIENCE` responses such a fault happens at the next one; a
fault that was named by ``at=`` waits for its state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

STATES = ("announced", "response received", "amid reduction", "between reduction and step", "in commit", "in join")
RESPONSE, _, STEP, COMMIT, JOIN = STATES[1:]
KILL, STOP, DELAY, CUT = ACTS = ("kill", "stop", "delay", "cut")
"""SIGKILL; SIGSTOP and, some time later, SIGCONT; a pause of the thread alone; the end of its connections to others."""
PATIENCE = 50
"""A rank that receives so many responses and never comes to the state of a planned fault fails at the next response."""
_USUAL_S = {STOP: 1.0, DELAY: 0.25}
_OFTEN = 4  # a rank passes a state so many times at most before it fails
_MOST = 10_000
_EXAMPLE = "Say for example --chaos seed=7,kills=20 or --chaos at=kill:in-commit:1:2"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        act: one of :data:`ACTS`.
        state: one of :data:`STATES`.
        rank: whose; where there are fewer ranks by then, the remainder of a division by their number.
        nth: at which passing, counted from 1.
        seconds: how long it is stopped or delayed.

    Example:
        >>> fault = Fault("kill", "in commit", rank=1, nth=2)
        >>> fault.words, [fault.victim(size) for size in (1, 2, 3)]
        ('at=kill:in-commit:1:2', [0, 1, 1])
    """

    act: str
    state: str
    rank: int
    nth: int
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """What ``--chaos`` has to be told for just this one."""
        return f"at={self.act}:{self.state.replace(' ', '-')}:{self.rank}:{self.nth}"

    @property
    def ends_epoch(self) -> bool:
        """Do the ranks have to form a new epoch after it?"""
        return self.act in (KILL, CUT)

    def victim(self, size: int) -> int:
        """Whose it is where there are so many ranks. At :data:`JOIN` rank 0 is spared, unless it is named.

        In an epoch that only begins, rank 0 may be the one process that has what was trained.
        """
        if self.state == JOIN and self.rank:
            return 1 + (self.rank - 1) % (size - 1) if size > 1 else -1
        return self.rank % size


@dataclass(frozen=True)
class Chaos:
    """What was asked for.

    Args:
        seed: of the plan.
        counts: how many faults of each sort; by their names in :data:`ACTS`.
        states: at which they happen.
        named: faults that were named one by one; they come first.
        ranks: for so many ranks it is planned.
        record: a folder that all ranks see, where it is noted which faults have happened; empty if there is none.

    Example:
        >>> chaos = parse("seed=7,kills=2,states=announced+in-commit", ranks=3)
        >>> [fault.words for fault in chaos.plan()]
        ['at=kill:in-commit:0:2', 'at=kill:announced:0:3']
        >>> parse(chaos.text) == chaos
        True
    """

    seed: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    states: tuple[str, ...] = STATES
    named: tuple[Fault, ...] = ()
    ranks: int = 1
    record: str = ""

    @property
    def text(self) -> str:
        words = [f"seed={self.seed}", f"ranks={self.ranks}", *(f"{act}s={n}" for act, n in self.counts.items())]
        words += [f"states={'+'.join(self.states).replace(' ', '-')}", *(fault.words for fault in self.named)]
        return ",".join([*words, *([f"record={self.record}"] if self.record else [])])

    @property
    def kills(self) -> int:
        return sum(fault.act == KILL for fault in self.plan())

    def plan(self) -> list[Fault]:
        """All faults in the order in which they happen. Each state comes as often as the others, give or take one."""
        dice = random.Random(f"chaos {self.seed} {self.ranks}")
        acts = [act for act in ACTS for _ in range(self.counts.get(act, 0))]
        dice.shuffle(acts)
        found, deck = list(self.named), list[str]()
        for act in acts:
            joins = not found or found[-1].ends_epoch  # else no new epoch begins, and no rank joins one
            if not any(joins or one != JOIN for one in deck):
                fresh = [state for state in self.states if state != JOIN or self.ranks > 1] or list(self.states)
                dice.shuffle(fresh)
                deck = [*deck, *fresh]
            state = deck.pop(max((i for i, one in enumerate(deck) if joins or one != JOIN), default=0))
            rank = dice.randrange(min(1, self.ranks - 1), self.ranks) if state == JOIN else dice.randrange(self.ranks)
            nth = 1 if state == JOIN else dice.randint(1, _OFTEN)
            found.append(Fault(act, state, rank, nth, _USUAL_S.get(act, 0.0)))
        return found


def parse(text: str, ranks: int | None = None, record: str = "") -> Chaos:
    """Read what ``--chaos`` was told.

    Args:
        text: ``seed=``, ``kills=``, ``stops=``, ``delays=``, ``cuts=``, ``states=a+b`` and ``at=act:state:rank:nth``,
            with commas between them.
        ranks, record: instead of what is in the text.

    Raises:
        ValueError: it makes no sense; the text says what to write.

    Example:
        >>> parse("kils=3")
        Traceback (most recent call last):
        ValueError: --chaos: 'kils' is not known: seed, kills, stops, delays, cuts, states and at are.
    """
    text, _, noted = text.partition(",record=")
    found: dict[str, str] = {}
    named: list[Fault] = []
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, value = (part.strip() for part in word.partition("="))
        if name == "at":
            named.append(_fault(value))
        elif name not in ("seed", *(f"{act}s" for act in ACTS), "states", "ranks"):
            words = ", ".join(["seed", *(f"{act}s" for act in ACTS), "states"])
            raise ValueError(f"--chaos: {name!r} is not known: {words} and at are.")
        elif name in found:
            raise ValueError(f"--chaos: {name} is given twice. Give it once.")
        else:
            found[name] = value
    counts = {act: _number(f"{act}s", found[f"{act}s"]) for act in ACTS if f"{act}s" in found}
    if not named and not sum(counts.values()):
        raise ValueError(f"--chaos {text}: there is no fault in it. {_EXAMPLE}.")
    if sum(counts.values()) > _MOST:
        raise ValueError(
            f"--chaos: {sum(counts.values())} faults are too many: a plan has at most {_MOST}. Ask for fewer."
        )
    states = tuple(map(_state, found["states"].split("+"))) if "states" in found else STATES
    if ranks is None:
        ranks = max(1, _number("ranks", found.get("ranks", "1")))
    seed = _number("seed", found.get("seed", "0"))
    return Chaos(seed, counts, states, tuple(named), ranks, record or noted)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"--chaos: {name}={text} is no whole number of 0 or more. {_EXAMPLE}.")
    return int(text)


def _state(text: str) -> str:
    name = text.strip().replace("-", " ")
    if name not in STATES:
        states = ", ".join(state.replace(" ", "-") for state in STATES)
        raise ValueError(f"--chaos: {text!r} is not a state of a rank. The states are {states}.")
    return name


def _fault(text: str) -> Fault:
    act, state, rank, nth = (text.split(":") + ["", "", "0", "1"][len(text.split(":")) :])[:4]
    if act not in ACTS or text.count(":") > 3:
        raise ValueError(f"--chaos at={text}: it is at=act:state:rank:nth, and an act is one of {', '.join(ACTS)}.")
    return Fault(act, _state(state), _number("at, rank", rank), max(1, _number("at, nth", nth)), _USUAL_S.get(act, 0.0))

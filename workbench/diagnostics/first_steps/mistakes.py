"""What the events of all ranks have in them of known mistakes: plain comparisons, without a process.

Each rule is written so that a right script has nothing of it. What is right in some scripts and wrong in others is a
note.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.common.text import count

Event = dict[str, Any]
Ranks = Sequence[Sequence[Event]]


@dataclass(frozen=True)
class Mistake:
    """One of them.

    Args:
        at: file, line and text of the line; empty if it is in no line.
        text: what is wrong.
        cure: what to do.
        note: it may be meant so.
        at_start: the line that is to be changed is where the library is imported, if the script imports it.
    """

    at: tuple[Any, ...]
    text: str
    cure: str
    note: bool = False
    at_start: bool = False


def find(ranks: Ranks) -> list[Mistake]:
    """The mistakes that these events show.

    Args:
        ranks: by rank, its events, in their order.

    Example:
        >>> ran = {"what": "graph", "at": ["a.py", 3, "session.run(train)"], "size": 0, "others": 0}
        >>> find([[ran], [ran]])[0].text
        'The 2 ranks take their steps without init(): each one trains alone.'
    """
    return [mistake for rule in RULES for mistake in rule(ranks)]


def _no_world(ranks: Ranks) -> Iterator[Mistake]:
    firsts = [first for events in ranks if (first := _first(events, "step", "graph"))]
    if any(each["others"] > 1 for each in firsts):
        return
    for size in sorted({each["size"] for each in firsts if each["size"] < len(ranks)})[:1]:
        at = next(each["at"] for each in firsts if each["size"] == size)
        if size == 0:
            text, cure = "without init(): each one trains alone", "Call hvd.init() at the start of the script."
        else:
            text = f"in a job of {count(size, 'rank')}: init() has not found the others"
            cure = "Pass the whole environment to the script, and call init() without a communicator of its own."
        yield Mistake(tuple(at), f"The {len(ranks)} ranks take their steps {text}.", cure, at_start=size == 0)


def _two_worlds(ranks: Ranks) -> Iterator[Mistake]:
    inits = _all(ranks[0], "init")
    for before, now in itertools.pairwise(inits):
        if now["again"] and now["asked"] != now["size"]:
            what = f"asks for {count(now['asked'], 'rank')}, and changes nothing: the job has {now['size']} already"
        elif not now["again"] and now["size"] != before["size"]:
            what = f"leads to {count(now['size'], 'rank')}; the one before it led to {before['size']}"
        else:
            continue
        yield Mistake(
            tuple(now["at"]), f"This init() {what}.", "Call init() once, and use process sets for some of the ranks."
        )


def _same_samples(ranks: Ranks) -> Iterator[Mistake]:
    seen = [[each["batch"] for each in _all(events, "step") if each["batch"] is not None] for events in ranks]
    most = min(map(len, seen))
    if most < 2 or any(each[:most] != seen[0][:most] for each in seen):
        return
    at = tuple((_training_loop(ranks[0]) or _first(ranks[0], "step") or {}).get("at", ()))
    if len(set(seen[0])) > 1:
        yield Mistake(
            at,
            f"All {len(ranks)} ranks have trained on the same samples: the inputs of their first {most} steps are "
            "equal to the last bit.",
            "Shard the data: DataLoader(…, sampler=DistributedSampler(dataset, hvd.size(), hvd.rank())), or "
            "dataset.shard(hvd.size(), hvd.rank()).",
        )
    else:
        yield Mistake(
            at,
            "Each step of each rank has the same input.",
            "That is a benchmark, or each rank trains on all the data.",
            note=True,
        )


def _different_weights(ranks: Ranks) -> Iterator[Mistake]:
    for steps in _by_optimizer(ranks):
        one, two = (list(zip(*steps, strict=True))[k : k + 1] for k in (0, 1))
        if any(each["sharded"] for each in one[0]):
            continue
        if all(_differ(each, "weights") for each in (*one, *two)) and (two or one[0][0]["framework"] == "torch"):
            yield Mistake(
                _made(ranks[0], one[0][0]),
                "The ranks begin with different weights, and never get the same ones.",
                "Before the first step: hvd.broadcast_parameters(model.state_dict(), root_rank=0); in Keras "
                "callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)].",
            )


def _different_gradients(ranks: Ranks) -> Iterator[Mistake]:
    for steps in _by_optimizer(ranks):
        together = list(zip(*steps, strict=True))
        if any(each["wrapped"] or each["sharded"] for each in together[0]):
            continue
        later = together[1:]
        if any(_differ(each, "gradients") for each in together) and all(_differ(each, "weights") for each in later):
            yield Mistake(
                _made(ranks[0], together[0][0]),
                "The gradients are not averaged: each rank steps with its own, so each trains a model of its own.",
                "optimizer = hvd.DistributedOptimizer(optimizer, …), and step with that one; in a loop of your own in "
                "TensorFlow tape = hvd.DistributedGradientTape(tape).",
            )


def _forgotten_parameters(ranks: Ranks) -> Iterator[Mistake]:
    for steps in _by_optimizer(ranks):
        found = next((each for each in steps[0] if each.get("missing")), None)
        if found is None:
            continue
        names = ", ".join(found["missing"][:3]) + (" …" if len(found["missing"]) > 3 else "")
        if not found["known"]:
            yield Mistake(
                _made(ranks[0], found),
                f"This optimizer has no parameter of the model that is trained ({names}): the model was made, copied "
                "or changed after the optimizer.",
                "Make the optimizer, and wrap it, after the model has its last form.",
            )
        else:
            yield Mistake(
                _made(ranks[0], found),
                f"No optimizer has these parameters of the model, which get gradients: {names}.",
                "If they are meant to stay as they are, say so with requires_grad_(False).",
                note=True,
            )
        return


def _one_device(ranks: Ranks) -> Iterator[Mistake]:
    by = defaultdict[str, list[int]](list)
    for rank, events in enumerate(ranks):
        if (first := _first(events, "step")) and first.get("device"):
            by[first["device"]].append(rank)
    shared = next((found for found in by.values() if len(found) > 1), None)
    if shared:
        first = _first(ranks[shared[0]], "step") or {}
        yield Mistake(
            _made(ranks[shared[0]], first),
            f"Ranks {', '.join(map(str, shared))} train on the same GPU, and there are others.",
            "torch.cuda.set_device(hvd.local_rank()), before the model goes to the GPU.",
        )


def _uneven(ranks: Ranks) -> Iterator[Mistake]:
    loops = [_training_loop(events) for events in ranks]
    lengths = [each["length"] if each else None for each in loops]
    if None in lengths or len(set(lengths)) == 1 or loops[0] is None or all(_all(each, "join") for each in ranks):
        return
    said = ", ".join(f"rank {rank}: {length}" for rank, length in enumerate(lengths))
    yield Mistake(
        tuple(loops[0]["at"]),
        f"The ranks have different numbers of batches in an epoch ({said}): those with more wait for the others, which "
        "have left the loop.",
        "Let the sampler pad or drop (DistributedSampler does), or call hvd.join() after the epoch.",
    )


def _same_order(ranks: Ranks) -> Iterator[Mistake]:
    events = list(ranks[0])
    trained = _training_loop(events)
    loops = [each for each in _all(events, "loop") if trained and each["loader"] == trained["loader"]]
    for before, now in itertools.pairwise(loops):
        if now["shuffles"] and now["epoch"] is not None and now["epoch"] == before["epoch"]:
            yield Mistake(
                tuple(now["at"]),
                "Each epoch has the same order of samples: the sampler is not told which epoch it is.",
                "sampler.set_epoch(epoch), before this loop.",
            )
            return


def _own_metric(ranks: Ranks) -> Iterator[Mistake]:
    for together in zip(*(_all(events, "metric") for events in ranks), strict=False):
        if _differ(together, "value"):
            said = ", ".join(f"rank {rank}: {each['value']:.6g}" for rank, each in enumerate(together))
            yield Mistake(
                tuple(together[0]["at"]),
                f"The ranks give this scheduler different numbers ({said}): their learning rates will differ.",
                "Give it the same on all: hvd.allreduce(loss) averages one.",
            )
            return


def _one_file(ranks: Ranks) -> Iterator[Mistake]:
    by = defaultdict[str, dict[int, Event]](dict)
    for rank, events in enumerate(ranks):
        for each in _all(events, "write"):
            by[each["path"]].setdefault(rank, each)
    said = set[tuple[Any, ...]]()
    for path, writers in by.items():
        first = next(iter(writers.values()))
        if len(writers) < 2 or tuple(first["at"]) in said:
            continue
        said.add(tuple(first["at"]))
        all_or = "All" if len(writers) == len(ranks) else f"{len(writers)} of the"
        does = "append to" if first["appends"] else "write"
        yield Mistake(
            tuple(first["at"]),
            f"{all_or} {len(ranks)} ranks {does} the same file, {path}.",
            "Do it where hvd.rank() == 0 only, or have the rank in the file's name.",
        )


RULES: tuple[Callable[[Ranks], Iterator[Mistake]], ...] = (
    *(_no_world, _two_worlds, _same_samples, _different_weights, _different_gradients, _forgotten_parameters),
    *(_one_device, _uneven, _same_order, _own_metric, _one_file),
)


def _all(events: Sequence[Event], *what: str) -> list[Event]:
    return [each for each in events if each["what"] in what]


def _first(events: Sequence[Event], *what: str) -> Event | None:
    return next(iter(_all(events, *what)), None)


def _by_optimizer(ranks: Ranks) -> Iterator[list[list[Event]]]:
    """For each optimizer the steps of each rank, as many as all have taken; only in a job of all these ranks."""
    everybody = [_all(events, "step") for events in ranks]
    for number in dict.fromkeys(each["optimizer"] for each in everybody[0]):
        steps = [[each for each in events if each["optimizer"] == number] for events in everybody]
        most = min(map(len, steps))
        if most and max(steps[0][0]["size"], steps[0][0]["others"]) > 1:
            yield [each[:most] for each in steps]


def _differ(together: Sequence[Event], what: str) -> bool:
    return len({each[what] for each in together}) > 1


def _made(events: Sequence[Event], step: Event) -> tuple[Any, ...]:
    """The line where a step's optimizer was made, or else that of the step."""
    made = next((each for each in _all(events, "optimizer") if each["optimizer"] == step.get("optimizer")), step)
    return tuple(made.get("at") or step.get("at") or ())


def _training_loop(events: Sequence[Event]) -> Event | None:
    """The first loop over batches in which steps were taken."""
    inside: Event | None = None
    for each in events:
        if each["what"] == "loop":
            inside = each
        elif each["what"] == "step" and inside is not None:
            return inside
    return None

"""The response cache: ids mean the same at both ends, whatever changes, is evicted or is on its way."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from coordination import Coordinator, Item, response_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.core.handle import Handle
from workbench.core.messages import Announce, Decision, Kind, Request, Response
from workbench.core.pending import Entry
from workbench.core.protocols import PlainAnnouncer
from workbench.runtime.control.codec import decode_decision, encode_decision
from workbench.runtime.steady.cache import CachingAnnouncer, CoordinatorCache
from workbench.runtime.steady.eager import EagerAnnouncer

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ask(name: str, length: int = 4, **fields: object) -> Request:
    """A request for an allreduce."""
    return replace(Request(name, Kind.ALLREDUCE, "float32", (length,)), **fields)


def answer(name: str, **fields: object) -> Response:
    """The response to :func:`ask`."""
    return replace(Response(name, Kind.ALLREDUCE, "float32", (4,)), **fields)


def put(cache: CoordinatorCache, requests: dict[int, Request], response: Response) -> int | None:
    """Remember an answer to requests; its id."""
    return cache.put(replace(response, requests=requests)).cache_id


# --- the coordinator's side ---------------------------------------------------------------------------


@PROPERTY
@given(st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), max_size=20))
def test_the_least_recently_used_name_is_forgotten(capacity: int, steps: list[tuple[bool, str]]) -> None:
    """The cache holds the ``capacity`` names that were put or touched last; each new entry has a new id."""
    cache, model, ids = CoordinatorCache(capacity, size=1), dict[str, int](), set[int]()
    for touch, name in steps:
        if touch and name in model:
            cache.touch([cache.response(model[name])])
            model[name] = model.pop(name)
        elif not touch:
            cache_id = put(cache, {0: ask(name)}, answer(name))
            evicted = [model.pop(name)] if name in model else []
            if len(model) == capacity:
                evicted.append(model.pop(next(iter(model))))
            assert cache.take_evicted(1) == evicted
            assert cache_id not in ids
            ids.add(cache_id)
            model[name] = cache_id
    assert all(cache.request(cache_id, 0) == ask(name) for name, cache_id in model.items())


def test_what_is_not_worth_it_gets_no_id() -> None:
    """Numbered names and errors are not remembered."""
    cache = CoordinatorCache(8, 1)
    assert put(cache, {0: ask("allreduce.noname.1")}, answer("allreduce.noname.1")) is None
    assert put(cache, {0: ask("x")}, answer("x", error=("MismatchError", "text"))) is None
    assert cache.take_evicted(1) == []


def test_an_evicted_id_is_kept_until_every_rank_has_read_of_it() -> None:
    """A rank may still mean an evicted id; only when all have read of the eviction is the id forgotten."""
    cache = CoordinatorCache(1, size=2)
    old = put(cache, {0: ask("x", 1), 1: ask("x", 2)}, answer("x"))
    put(cache, {0: ask("y"), 1: ask("y")}, answer("y"))
    assert cache.take_evicted(5) == [old]
    cache.seen(0, 5)
    cache.seen(1, 4)
    assert (cache.request(old, 0), cache.request(old, 1)) == (ask("x", 1), ask("x", 2))
    cache.seen(1, 5)
    assert cache.request(old, 0) is None


def test_the_same_name_in_two_process_sets_is_two_names() -> None:
    """Process sets do not evict each other's names."""
    cache = CoordinatorCache(8, 1)
    one, other = put(cache, {0: ask("x")}, answer("x")), put(cache, {0: ask("x")}, answer("x", process_set=1))
    assert one != other
    assert cache.take_evicted(1) == []


# --- a rank's side ------------------------------------------------------------------------------------


def told(rank: CachingAnnouncer, cache_id: int, request: Request) -> None:
    """A rank asks, and is told an id with the response."""
    entry = SimpleNamespace(request=request, source=None)
    rank.announce([entry], seen=0)
    assert rank.read(Decision(1, [answer(request.name, cache_id=cache_id)])) == [answer(request.name)]


def announced(rank: CachingAnnouncer, request: Request) -> Request | int:
    """As what the rank announces a request."""
    return rank.announce([Entry(request, None, None, Handle(request.name))], 0).items[0]


def test_a_rank_names_what_it_knows_by_number() -> None:
    """The very same request becomes its id; one that differs in anything stays whole."""
    rank = CachingAnnouncer(PlainAnnouncer(0), 0)
    assert announced(rank, ask("x")) == ask("x")
    told(rank, 7, ask("x"))
    assert announced(rank, ask("x")) == 7
    assert rank.read(Decision(2, [7])) == [answer("x")]
    for other in (ask("y"), ask("x", 5), ask("x", dtype="int8"), ask("x", prescale=0.5), ask("x", absent=True)):
        assert announced(rank, other) == other


def test_evicting_an_old_id_leaves_the_new_one() -> None:
    """When a name has a new id, the eviction of the old one changes nothing; unknown ids are passed over."""
    rank = CachingAnnouncer(PlainAnnouncer(0), 0)
    told(rank, 1, ask("x"))
    told(rank, 2, ask("x"))
    assert rank.read(Decision(2, [], {}, [1, 99])) == []
    assert announced(rank, ask("x")) == 2
    assert rank.read(Decision(3, [1])) == []
    assert rank.read(Decision(4, [], {}, [2])) == []
    assert announced(rank, ask("x")) == ask("x")


def test_results_stay_with_their_responses_where_an_id_is_unknown() -> None:
    """An id of a process set without this rank is skipped, and the next one's result is not taken for its own."""
    rank = CachingAnnouncer(EagerAnnouncer(PlainAnnouncer(0), 0, 4096), 0)
    told(rank, 7, ask("x"))
    (response,) = rank.read(Decision(2, [99, 7], {0: b"another", 1: b"mine"}))
    assert (response.name, response.result) == ("x", b"mine")


# --- both together ------------------------------------------------------------------------------------


def give(coordinator: Coordinator, *items: Request | int, seen: int = 0) -> list[Item]:
    """Every rank announces the same items."""
    ranks = range(coordinator.size)
    return [out for rank in ranks for out in coordinator.take(Announce(rank, items, seen), now=0.0)]


def test_a_hit_is_a_number() -> None:
    """The first time the whole response comes, with an id; from then on the id alone."""
    coordinator = Coordinator(2)
    (response,) = give(coordinator, ask("x"))
    cache_id = response.cache_id
    assert response.shape == (4,)
    assert give(coordinator, cache_id) == give(coordinator, cache_id) == [cache_id]


def test_a_changed_shape_is_negotiated_anew() -> None:
    """A new shape gets a whole response and a new id, and the old id is void."""
    coordinator = Coordinator(2)
    (old,) = give(coordinator, ask("x", 4))
    (new,) = give(coordinator, ask("x", 5))
    assert new.shape == (5,)
    assert new.cache_id not in (old.cache_id, None)
    assert coordinator.last.evicted == [old.cache_id]


def test_what_carries_rates_leaves_the_id_as_it_is() -> None:
    """A request of one step alone is compared in full, gets no id, and the old one goes on; so on a rank's side."""
    coordinator, rank = Coordinator(2), CachingAnnouncer(PlainAnnouncer(0), 0)
    (known,) = give(coordinator, ask("x"))
    told(rank, known.cache_id, ask("x"))
    carrying = ask("x", progress=(("lr", 0.1),))
    assert announced(rank, carrying) == carrying
    (response,) = give(coordinator, carrying)
    assert (response.cache_id, response.error, coordinator.last.evicted) == (None, (), [])
    assert rank.read(Decision(2, [response])) == [response]
    assert announced(rank, ask("x")) == known.cache_id
    assert give(coordinator, known.cache_id) == [known.cache_id]


def test_an_id_is_compared_with_a_whole_request() -> None:
    """One rank's id and another's changed request are a mismatch, with both shapes in the text."""
    coordinator = Coordinator(2)
    (known,) = give(coordinator, ask("x", 4))
    assert coordinator.take(Announce(0, (known.cache_id,)), 0.0) == []
    (response,) = coordinator.take(Announce(1, (ask("x", 5),)), 0.0)
    assert response.error[0] == "MismatchError"
    assert {"  rank 0: [4]", "  rank 1: [5]"} <= set(response.error[1].splitlines())
    assert response.cache_id is None


def test_capacity_zero_turns_the_cache_off() -> None:
    """Without capacity every response comes whole and has no id."""
    coordinator = Coordinator(2, cache_capacity=0)
    for _ in range(3):
        (response,) = give(coordinator, ask("x"))
        assert (response.name, response.cache_id) == ("x", None)
        assert coordinator.last.evicted == []


@pytest.mark.parametrize("late", [[1], [0, 1]], ids=["one rank", "all ranks"])
def test_an_id_that_was_evicted_meanwhile_still_works(late: list[int]) -> None:
    """Ranks announce an id before they read that it is void; all of them can make something of the answer.

    By the time they read the answer they have read of the eviction: an answer that is the id alone would mean
    nothing to them.
    """
    coordinator = Coordinator(2, cache_capacity=1)
    x = give(coordinator, ask("x"))[0].cache_id
    give(coordinator, ask("y"))
    assert coordinator.last.evicted == [x]
    out: list[Item] = []
    for rank in (0, 1):
        item, seen = (x, 1) if rank in late else (ask("x"), 2)
        out += coordinator.take(Announce(rank, (item,), seen), 0.0)
    (item,) = out
    assert not isinstance(item, int), "the answer is an id that the ranks have been told to forget"
    assert (item.name, item.shape, item.error) == ("x", (4,), ())
    assert item.cache_id != x


def test_a_member_of_a_group_may_be_evicted_while_it_waits_for_the_others() -> None:
    """A group's member is complete, its id is evicted by other tensors, then the group completes: all get an answer."""
    coordinator = Coordinator(1, cache_capacity=2)
    a, b = ask("a", group="g", group_size=2), ask("b", group="g", group_size=2)
    ids = [item.cache_id for item in give(coordinator, a, b)]
    assert give(coordinator, ids[0], seen=1) == []  # a is ready and waits for b
    give(coordinator, ask("y"), ask("z"), seen=1)
    assert set(ids) <= set(coordinator.last.evicted)
    out = give(coordinator, b, seen=2)
    assert [response_of(item).name for item in out] == ["a", "b"]


# --- a whole world of simulated ranks -----------------------------------------------------------------


@dataclass
class Rank:
    """One simulated rank: what it will submit, what is in flight, and the messages on their way to and from it."""

    script: list[tuple[Request, ...]]
    announcer: CachingAnnouncer = field(default_factory=lambda: CachingAnnouncer(PlainAnnouncer(0), 0))
    flying: dict[str, Request] = field(default_factory=dict)
    up: deque[Announce] = field(default_factory=deque)
    down: deque[Decision] = field(default_factory=deque)
    seen: int = 0
    done: list[tuple[str, bool]] = field(default_factory=list)  # (name, did it end with an error)


class World:
    """Ranks with a cache each around one coordinator; messages travel only when told to, but in order."""

    def __init__(self, scripts: list[list[tuple[Request, ...]]], capacity: int) -> None:
        self.ranks = [Rank(script) for script in scripts]
        self.coordinator = Coordinator(len(scripts), capacity)
        self.hits = 0

    def submit(self, me: int) -> bool:
        """Submit the next tensors of the script, unless one of their names is in flight."""
        rank = self.ranks[me]
        if not rank.script or any(request.name in rank.flying for request in rank.script[0]):
            return False
        requests = rank.script.pop(0)
        rank.flying |= {request.name: request for request in requests}
        event = rank.announcer.announce([SimpleNamespace(request=request) for request in requests], rank.seen)
        rank.up.append(Announce(me, event.items, rank.seen))
        return True

    def rise(self, me: int) -> bool:
        """Rank 0 reads one announcement and tells everybody what follows from it."""
        if not self.ranks[me].up:
            return False
        decision = self.coordinator.whole.take(self.ranks[me].up.popleft(), now=0.0)
        if decision:
            for rank in self.ranks:
                rank.down.append(decode_decision(encode_decision(decision)))
        return True

    def fall(self, me: int) -> bool:
        """A rank reads one message, and does what the engine does with it."""
        rank = self.ranks[me]
        if not rank.down:
            return False
        decision = rank.down.popleft()
        rank.seen = decision.number
        self.hits += sum(isinstance(item, int) for item in decision.items)
        responses = rank.announcer.read(decision)
        assert len(responses) == len(decision.items), f"rank {me} does not know an id of {decision.items} (any more)"
        for response in responses:
            request = rank.flying.pop(response.name)
            assert response.error or response.shape == request.shape
            rank.done.append((response.name, bool(response.error)))
        return True

    def settle(self) -> None:
        """Until nothing moves any more."""
        moved = True
        while moved:
            moved = False
            for step in (self.submit, self.rise, self.fall):
                for me in range(len(self.ranks)):
                    moved |= step(me)


NAMES = ["a", "b", "c", "d"]


@st.composite
def scripts(draw: st.DrawFn) -> list[list[tuple[Request, ...]]]:
    """What each of the ranks submits: rounds of the same names, now and then in another shape, in its own order.

    ``g`` stands for a group of two. In some rounds one rank has another shape than the others for one name.
    """
    n = draw(st.integers(1, 3))
    ranks: list[list[tuple[Request, ...]]] = [[] for _ in range(n)]
    for _ in range(draw(st.integers(1, 6))):
        names = draw(st.lists(st.sampled_from([*NAMES, "g"]), unique=True, min_size=1))
        length, odd = draw(st.integers(4, 5)), draw(st.sampled_from([*NAMES, "", "", "", ""]))
        for rank in range(n):
            for name in draw(st.permutations(names)):
                if name == "g":
                    group = [ask(f"g{i}", length, group="g", group_size=2) for i in range(2)]
                    ranks[rank].append(tuple(group))
                else:
                    ranks[rank].append((ask(name, 9 if name == odd and rank == n - 1 else length),))
    return ranks


def expected(scripts: list[list[tuple[Request, ...]]]) -> dict[str, list[bool]]:
    """Name → for each time that it is submitted, whether the ranks disagree."""
    told: list[dict[str, list[Request]]] = []
    for script in scripts:
        mine: dict[str, list[Request]] = {}
        for request in (request for requests in script for request in requests):
            mine.setdefault(request.name, []).append(request)
        told.append(mine)
    return {name: [len(set(each)) > 1 for each in zip(*(mine[name] for mine in told), strict=True)] for name in told[0]}


@settings(PROPERTY, max_examples=100)
@given(scripts(), st.integers(0, 3), st.data())
def test_both_ends_never_disagree(scripts: list[list[tuple[Request, ...]]], capacity: int, data: st.DataObject) -> None:
    """However messages and submissions interleave, every tensor ends once on every rank, in one order, rightly.

    The capacity is smaller than the number of names, so ids are evicted all the time while ranks still use them.
    """
    right, n = expected(scripts), len(scripts)
    world = World([list(script) for script in scripts], capacity)
    steps = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, n - 1)), max_size=80))
    for step, me in steps:
        (world.submit, world.rise, world.fall)[step](me)
    world.settle()
    assert world.coordinator.waiting() == {}
    for rank in world.ranks:
        assert (rank.script, rank.flying) == ([], {})
        assert rank.done == world.ranks[0].done
    for name, errors in right.items():
        assert [error for each, error in world.ranks[0].done if each == name] == errors


def test_the_simulated_world_uses_the_cache() -> None:
    """A steady loop is answered with ids from its second round on, so the property above is about ids."""
    step = [(ask(name),) for name in "abc"]
    world = World([step * 5, step * 5], capacity=3)
    world.settle()
    assert world.hits == 2 * 4 * len(step)
    assert Counter(name for name, _ in world.ranks[0].done) == {"a": 5, "b": 5, "c": 5}

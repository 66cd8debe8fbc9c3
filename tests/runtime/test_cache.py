"""The response cache: ids mean the same at both ends, whatever changes, is evicted or is on its way."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.runtime.cache import CoordinatorCache, RankCache
from workbench.runtime.coordinator import Coordinator
from workbench.runtime.messages import Announce, Kind, Outgoing, Request, Response

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ask(name: str, length: int = 4, **fields: object) -> Request:
    """A request for an allreduce."""
    return replace(Request(name, Kind.ALLREDUCE, "float32", (length,)), **fields)


def answer(name: str, **fields: object) -> Response:
    """The response to :func:`ask`."""
    return replace(Response(name, Kind.ALLREDUCE, "float32", (4,)), **fields)


# --- the coordinator's side ---------------------------------------------------------------------------


@PROPERTY
@given(st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), max_size=20))
def test_the_least_recently_used_name_is_forgotten(capacity: int, steps: list[tuple[bool, str]]) -> None:
    """The cache holds the ``capacity`` names that were put or touched last; each new entry has a new id."""
    cache, model, ids = CoordinatorCache(capacity, size=1), dict[str, int](), set[int]()
    for touch, name in steps:
        if touch and name in model:
            assert cache.touch(model[name]).name == name
            model[name] = model.pop(name)
        elif not touch:
            cache_id = cache.put({0: ask(name)}, answer(name))
            evicted = [model.pop(name)] if name in model else []
            if len(model) == capacity:
                evicted.append(model.pop(next(iter(model))))
            assert cache.take_evicted(1) == evicted
            assert cache_id not in ids
            ids.add(cache_id)
            model[name] = cache_id
    assert all(cache.request(cache_id, 0) == ask(name) for name, cache_id in model.items())


def test_what_is_not_worth_it_gets_no_id() -> None:
    """Numbered names, errors, and everything with capacity 0 are not remembered."""
    assert CoordinatorCache(0, 1).put({0: ask("x")}, answer("x")) == -1
    cache = CoordinatorCache(8, 1)
    assert cache.put({0: ask("allreduce.noname.1")}, answer("allreduce.noname.1")) == -1
    assert cache.put({0: ask("x")}, answer("x", error=("MismatchError", "text"))) == -1
    assert cache.take_evicted(1) == []


def test_an_evicted_id_is_kept_until_every_rank_has_read_of_it() -> None:
    """A rank may still mean an evicted id; only when all have read of the eviction is the id forgotten."""
    cache = CoordinatorCache(1, size=2)
    old = cache.put({0: ask("x", 1), 1: ask("x", 2)}, answer("x"))
    cache.put({0: ask("y"), 1: ask("y")}, answer("y"))
    assert cache.take_evicted(5) == [old]
    cache.seen(0, 5)
    cache.seen(1, 4)
    assert (cache.request(old, 0), cache.request(old, 1)) == (ask("x", 1), ask("x", 2))
    cache.seen(1, 5)
    assert cache.request(old, 0) is None


def test_the_same_name_in_two_process_sets_is_two_names() -> None:
    """Process sets do not evict each other's names."""
    cache = CoordinatorCache(8, 1)
    one, other = cache.put({0: ask("x")}, answer("x")), cache.put({0: ask("x")}, answer("x", process_set=1))
    assert one != other
    assert cache.take_evicted(1) == []


# --- a rank's side ------------------------------------------------------------------------------------


def test_a_rank_names_what_it_knows_by_number() -> None:
    """The very same request becomes its id; one that differs in anything stays whole."""
    cache = RankCache()
    assert cache.shorten(ask("x")) == ask("x")
    cache.put(7, ask("x"), answer("x"))
    assert cache.shorten(ask("x")) == 7
    assert cache.response(7) == answer("x")
    for other in (ask("y"), ask("x", 5), ask("x", dtype="int8"), ask("x", prescale=0.5), ask("x", absent=True)):
        assert cache.shorten(other) == other


def test_evicting_an_old_id_leaves_the_new_one() -> None:
    """When a name has a new id, the eviction of the old one changes nothing; unknown ids are passed over."""
    cache = RankCache()
    cache.put(1, ask("x"), answer("x"))
    cache.put(2, ask("x"), answer("x"))
    cache.evict([1, 99])
    assert cache.shorten(ask("x")) == 2
    assert cache.response(1) is None
    cache.evict([2])
    assert cache.shorten(ask("x")) == ask("x")


# --- both together ------------------------------------------------------------------------------------


def give(coordinator: Coordinator, *items: Request | int, seen: int = 0) -> list[Outgoing]:
    """Every rank announces the same items."""
    ranks = range(coordinator.size)
    return [out for rank in ranks for out in coordinator.take(Announce(rank, items, seen), now=0.0)]


def test_a_hit_is_a_number() -> None:
    """The first time the whole response comes, with an id; from then on the id alone."""
    coordinator = Coordinator(2)
    ((response, cache_id),) = give(coordinator, ask("x"))
    assert response.shape == (4,)
    assert give(coordinator, cache_id) == give(coordinator, cache_id) == [cache_id]


def test_a_changed_shape_is_negotiated_anew() -> None:
    """A new shape gets a whole response and a new id, and the old id is void."""
    coordinator = Coordinator(2)
    ((_, old),) = give(coordinator, ask("x", 4))
    ((response, new),) = give(coordinator, ask("x", 5))
    assert response.shape == (5,)
    assert new not in (old, -1)
    assert coordinator.cache.take_evicted(1) == [old]


def test_an_id_is_compared_with_a_whole_request() -> None:
    """One rank's id and another's changed request are a mismatch, with both shapes in the text."""
    coordinator = Coordinator(2)
    ((_, cache_id),) = give(coordinator, ask("x", 4))
    assert coordinator.take(Announce(0, (cache_id,)), 0.0) == []
    ((response, new),) = coordinator.take(Announce(1, (ask("x", 5),)), 0.0)
    assert response.error[0] == "MismatchError"
    assert {"  rank 0: [4]", "  rank 1: [5]"} <= set(response.error[1].splitlines())
    assert new == -1


def test_capacity_zero_turns_the_cache_off() -> None:
    """Without capacity every response comes whole and has no id."""
    coordinator = Coordinator(2, cache_capacity=0)
    for _ in range(3):
        ((response, cache_id),) = give(coordinator, ask("x"))
        assert (response.name, cache_id) == ("x", -1)
    assert coordinator.cache.take_evicted(1) == []


@pytest.mark.parametrize("late", [[1], [0, 1]], ids=["one rank", "all ranks"])
def test_an_id_that_was_evicted_meanwhile_still_works(late: list[int]) -> None:
    """Ranks announce an id before they read that it is void; all of them can make something of the answer.

    By the time they read the answer they have read of the eviction: an answer that is the id alone would mean
    nothing to them.
    """
    coordinator = Coordinator(2, cache_capacity=1)
    ((_, x),) = give(coordinator, ask("x"))
    give(coordinator, ask("y"))
    assert coordinator.cache.take_evicted(2) == [x]
    out: list[Outgoing] = []
    for rank in (0, 1):
        item, seen = (x, 1) if rank in late else (ask("x"), 2)
        out += coordinator.take(Announce(rank, (item,), seen), 0.0)
    (item,) = out
    assert not isinstance(item, int), "the answer is an id that the ranks have been told to forget"
    assert (item[0].name, item[0].shape, item[0].error) == ("x", (4,), ())
    assert item[1] != x


def test_a_member_of_a_group_may_be_evicted_while_it_waits_for_the_others() -> None:
    """A group's member is complete, its id is evicted by other tensors, then the group completes: all get an answer."""
    coordinator = Coordinator(1, cache_capacity=2)
    a, b = ask("a", group="g", group_size=2), ask("b", group="g", group_size=2)
    ids = [item[1] for item in give(coordinator, a, b)]
    assert give(coordinator, ids[0], seen=1) == []  # a is ready and waits for b
    give(coordinator, ask("y"), ask("z"), seen=1)
    void = coordinator.cache.take_evicted(2)
    assert set(ids) <= set(void)
    out = give(coordinator, b, seen=2)
    assert [item[0].name for item in out if not isinstance(item, int)] == ["a", "b"]


# --- a whole world of simulated ranks -----------------------------------------------------------------


@dataclass
class Rank:
    """One simulated rank: what it will submit, what is in flight, and the messages on their way to and from it."""

    script: list[tuple[Request, ...]]
    cache: RankCache = field(default_factory=RankCache)
    flying: dict[str, Request] = field(default_factory=dict)
    up: deque[Announce] = field(default_factory=deque)
    down: deque[tuple[int, list[Outgoing], list[int]]] = field(default_factory=deque)
    seen: int = 0
    done: list[tuple[str, bool]] = field(default_factory=list)  # (name, did it end with an error)


class World:
    """Ranks with a RankCache each around one coordinator; messages travel only when told to, but in order."""

    def __init__(self, scripts: list[list[tuple[Request, ...]]], capacity: int) -> None:
        self.ranks = [Rank(script) for script in scripts]
        self.coordinator = Coordinator(len(scripts), capacity)
        self.number = 0
        self.hits = 0

    def submit(self, me: int) -> bool:
        """Submit the next tensors of the script, unless one of their names is in flight."""
        rank = self.ranks[me]
        if not rank.script or any(request.name in rank.flying for request in rank.script[0]):
            return False
        requests = rank.script.pop(0)
        rank.flying |= {request.name: request for request in requests}
        rank.up.append(Announce(me, tuple(map(rank.cache.shorten, requests)), rank.seen))
        return True

    def rise(self, me: int) -> bool:
        """Rank 0 reads one announcement and tells everybody what follows from it."""
        if not self.ranks[me].up:
            return False
        out = self.coordinator.take(self.ranks[me].up.popleft(), now=0.0)
        if out:
            self.number += 1
            message = self.number, out, self.coordinator.cache.take_evicted(self.number)
            for rank in self.ranks:
                rank.down.append(message)
        return True

    def fall(self, me: int) -> bool:
        """A rank reads one message, and does what the engine does with it."""
        rank = self.ranks[me]
        if not rank.down:
            return False
        rank.seen, items, evicted = rank.down.popleft()
        responses = []
        for item in items:
            if isinstance(item, int):
                response = rank.cache.response(item)
                assert response is not None, f"rank {me} does not know the id {item} (any more)"
                self.hits += 1
            else:
                response, cache_id = item
                if cache_id != -1:
                    rank.cache.put(cache_id, rank.flying[response.name], response)
            responses.append(response)
        rank.cache.evict(evicted)
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


@settings(PROPERTY, max_examples=200)
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

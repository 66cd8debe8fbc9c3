"""Epochs of an elastic job: who belongs to them, and when they begin. Events in, messages out."""

from __future__ import annotations

import itertools
import random
from typing import Any

from workbench.launch.elastic.membership import ADDED, REMOVED, Membership, Out

LIKE = {"like": {"version": 1}}


def ranks(out: Out) -> dict[int, tuple[int, int]]:
    """By worker the rank and size that it is told."""
    return {worker: (said.fields["rank"], said.fields["size"]) for worker, said in out if said.kind == "epoch"}


def kinds(out: Out) -> list[tuple[int, str]]:
    """Who is told what kind of thing."""
    return [(worker, message.kind) for worker, message in out]


def job(n: int, host: str = "a", **limits: int) -> Membership:
    """A job in its first epoch."""
    made = Membership(**limits)
    for worker in range(n):
        made.started(worker, host)
    for worker in range(n):
        made.came(worker, LIKE)
    assert made.epoch == 1
    return made


def test_the_first_epoch_waits_for_all() -> None:
    """All that were started and live; one that is lost before is not waited for."""
    made = Membership()
    for worker in range(3):
        made.started(worker, "a")
    assert made.came(2, LIKE) == made.came(0, LIKE) == []
    assert made.why_waiting() == "worker 1 on a did not call init() yet"
    assert ranks(made.gone(1, "killed")) == {0: (0, 2), 2: (1, 2)}


def test_survivors_are_told_and_the_next_epoch_waits_for_them_all() -> None:
    """Nothing of the old epoch is under way when the new one begins."""
    made = job(3)
    assert kinds(made.gone(1, "killed")) == [(0, "lost"), (2, "lost")]
    assert made.came(2, LIKE) == []
    assert made.awaited() == [0]
    assert made.why_waiting() == "worker 0 (rank 0) has not left epoch 1 yet"
    assert ranks(made.came(0, LIKE)) == {0: (0, 2), 2: (1, 2)}


def test_rank_0_is_the_lowest_survivor() -> None:
    """Not a newcomer, whatever its number and host."""
    made = job(2)
    made.started(2, "b")
    assert [m.fields["what"] for _, m in made.came(2, LIKE)] == [ADDED, ADDED]
    made.gone(0, "killed")
    assert ranks(made.came(1, LIKE)) == {1: (0, 2), 2: (1, 2)}


def test_ranks_of_a_host_follow_each_other() -> None:
    """In the order of the hosts' lowest ranks."""
    made = Membership()
    for worker, host in enumerate("abab"):
        made.started(worker, host)
    out = [made.came(worker, LIKE) for worker in range(4)][-1]
    assert ranks(out) == {0: (0, 4), 2: (1, 4), 1: (2, 4), 3: (3, 4)}


def test_a_newcomer_waits_for_the_next_commit() -> None:
    """Members are told once; what they exchange meanwhile goes on."""
    made = job(2)
    made.started(2, "a")
    assert kinds(made.came(2, LIKE)) == [(0, "changed"), (1, "changed")]
    assert "next commit" in made.why_waiting()
    assert made.value(0, 1, 1, b"a") == []
    assert kinds(made.value(1, 1, 1, b"b")) == [(0, "values"), (1, "values")]
    made.came(0, LIKE)
    out = made.came(1, LIKE)
    assert ranks(out) == {0: (0, 3), 1: (1, 3), 2: (2, 3)}


def test_newcomers_of_one_step_cost_one_reset() -> None:
    """Members are called when all that were started at once have come or are lost, or have been waited for enough."""
    for last in ("comes", "is lost", "is late"):
        made = job(2)
        made.started(2, "b", batch=7)
        made.started(3, "b", batch=7)
        assert [(m.fields["timestamp"], m.fields["what"]) for _, m in made.announce_started()] == [(0, ADDED)] * 2
        assert made.came(2, LIKE) == []
        assert made.awaits_followers()
        if last == "comes":
            out = made.came(3, LIKE)
        else:
            out = made.gone(3, "killed") if last == "is lost" else made.announce(late=True)
        assert kinds(out) == [(0, "changed"), (1, "changed")]
        assert all(m.fields["timestamp"] > 0 for _, m in out)
        assert not made.awaits_followers()
        assert made.announce(late=True) == []
        made.came(0, LIKE)
        assert len(ranks(made.came(1, LIKE))) == (4 if last == "comes" else 3)


def test_no_more_than_there_is_room_for() -> None:
    """A newcomer too many disturbs nobody, and gets the place of the next one that is lost."""
    made = job(2, most=2)
    made.started(2, "a")
    assert made.came(2, LIKE) == []
    made.gone(1, "killed")
    assert ranks(made.came(0, LIKE)) == {0: (0, 2), 2: (1, 2)}


def test_fewer_than_the_least_wait() -> None:
    """Until one more has come."""
    made = job(2, least=2)
    made.gone(0, "killed")
    assert made.came(1, LIKE) == []
    assert made.why_waiting() == "1 worker of at least 2 (min-np)"
    made.started(2, "a")
    assert ranks(made.came(2, LIKE)) == {1: (0, 2), 2: (1, 2)}


def test_who_is_to_leave_is_sent_away_at_the_next_epoch() -> None:
    """And members are told to come."""
    made = job(3)
    assert [(worker, m.fields["what"]) for worker, m in made.leave([0])] == [(each, REMOVED) for each in range(3)]
    assert made.leave([0]) == []
    made.came(0, LIKE)
    made.came(1, LIKE)
    out = made.came(2, LIKE)
    assert (0, "dismissed") in kinds(out)
    assert ranks(out) == {1: (0, 2), 2: (1, 2)}


def test_who_leaves_hands_over_first() -> None:
    """Where all members are to leave, the lowest stays until newcomers have what was trained."""
    made = job(2)
    made.started(2, "b")
    made.leave([0, 1])
    made.came(0, LIKE)
    assert made.came(1, LIKE) == []
    assert "that are being started" in made.why_waiting()
    out = made.came(2, LIKE)
    assert ranks(out) == {0: (0, 2), 2: (1, 2)}
    assert kinds(out) == [(1, "dismissed"), (0, "epoch"), (2, "epoch"), (0, "changed"), (2, "changed")]
    made.synced(2, epoch=2)
    made.came(0, LIKE)
    out = made.came(2, LIKE)
    assert (kinds(out), ranks(out)) == ([(0, "dismissed"), (2, "epoch")], {2: (0, 1)})


def test_a_newcomer_that_has_not_synced_does_not_become_rank_0() -> None:
    """Though the hosts' order would put it before the survivor that has what was trained."""
    made = Membership()
    made.started(0, "a"), made.started(1, "b")
    made.came(0, LIKE), made.came(1, LIKE)
    made.started(2, "a")
    made.came(2, LIKE), made.came(0, LIKE)
    assert ranks(made.came(1, LIKE)) == {0: (0, 3), 2: (1, 3), 1: (2, 3)}
    made.gone(0, "killed")
    made.came(2, LIKE)
    assert ranks(made.came(1, LIKE)) == {1: (0, 2), 2: (1, 2)}
    assert not made.lost_all_state
    made.gone(1, "killed")
    assert ranks(made.came(2, LIKE)) == {2: (0, 1)}
    assert made.lost_all_state, "nobody had what was trained"


def test_who_has_synced_may_become_rank_0() -> None:
    """After its first sync a newcomer is as good as any other."""
    made = job(1)
    made.started(1, "a")
    made.came(1, LIKE), made.came(0, LIKE)
    made.synced(1, epoch=1)
    assert not made._workers[1].trained, "that was another epoch"
    made.synced(1, epoch=2)
    made.gone(0, "killed")
    assert ranks(made.came(1, LIKE)) == {1: (0, 1)}
    assert not made.lost_all_state


def test_who_withdraws_is_not_waited_for() -> None:
    """A newcomer that gives up waiting; a member that gives up in init(), which the others of the epoch are told."""
    made = job(2)
    made.started(2, "a")
    made.came(2, LIKE)
    assert made.withdrew(2) == []
    assert not made.due()
    assert kinds(made.withdrew(1)) == [(0, "lost")]
    assert ranks(made.came(0, LIKE)) == {0: (0, 1)}
    assert kinds(made.came(1, LIKE)) == [(0, "changed")], "it may come again"
    assert ranks(made.came(0, LIKE)) == {0: (0, 2), 1: (1, 2)}


def test_an_epoch_is_of_those_that_came_last() -> None:
    """Each is told which of its wishes is granted, so that a withdrawn one is not taken for it."""
    made = Membership()
    made.started(0, "a"), made.started(1, "a")
    made.came(0, LIKE, number=1)
    assert made.withdrew(0) == made.came(1, LIKE, number=1) == []
    assert [message.fields["come"] for _, message in made.came(0, LIKE, number=2)] == [2, 1]


def test_engines_outlive_their_job() -> None:
    """After shutdown() by all they begin another one, with other numbers; so do newcomers of whom all others died."""
    made = Membership(anew=True)
    for worker in range(2):
        made.started(worker, "a")
        made.came(worker, LIKE)
    assert made.out(0) == made.out(1) == []
    made.started(2, "a")
    assert made.came(2, LIKE) == made.came(1, LIKE) == []
    assert "did not call init() yet" in made.why_waiting()
    out = made.came(0, LIKE)
    assert ranks(out) == {0: (0, 3), 1: (1, 3), 2: (2, 3)}
    assert (made.epoch, made.lost_all_state) == (2, False)
    made.started(3, "a")
    made.came(3, LIKE)
    made.gone(0, "killed"), made.gone(1, "killed")
    assert ranks(made.gone(2, "killed")) == {3: (0, 1)}
    assert (made.epoch, made.lost_all_state) == (3, True)


def test_a_job_that_all_have_left_is_over() -> None:
    """Who comes later would begin without what was trained."""
    made = job(2)
    made.leave([0, 1])
    made.came(0, LIKE)
    assert kinds(made.came(1, LIKE)) == [(0, "dismissed"), (1, "dismissed")]
    assert made.left
    made.started(2, "a")
    assert kinds(made.came(2, LIKE)) == [(2, "dismissed")]


def test_newcomers_do_not_begin_without_what_was_trained() -> None:
    """All members are lost while one waits for their next commit."""
    made = job(1)
    made.started(1, "a")
    made.came(1, LIKE)
    assert kinds(made.gone(0, "killed")) == [(1, "dismissed")]
    assert made.left


def test_each_epoch_has_a_key_of_its_own() -> None:
    """Drawn anew, the same for all."""
    made = Membership()
    made.started(0, "a")
    keys = {made.came(0, LIKE)[0][1].fields["key"] for _ in range(3)}
    assert len(keys) == 3
    assert made.epoch == 3


def test_values_of_an_older_epoch_or_of_a_stranger_are_not_exchanged() -> None:
    """Only those of the epoch's members count."""
    made = job(2)
    made.gone(1, "killed")
    made.came(0, LIKE)
    assert made.value(0, 1, 1, b"old") == []
    assert made.value(7, 2, 1, b"stranger") == []
    out = made.value(0, 2, 1, b"new")
    assert [(message.fields["lengths"], message.data) for _, message in out] == [([3], b"new")]


def test_who_does_not_fit_is_refused() -> None:
    """With what differs; the others go on without it."""
    made = job(1)
    made.started(1, "a")
    out = made.came(1, {"like": {"version": 2}})
    assert [(worker, m.kind, m.fields["why"]) for worker, m in out] == [
        (1, "refused", "its version is 2, and the others' 1")
    ]
    assert made.alive() == [0]


def test_after_a_member_has_finished_nobody_begins_anew() -> None:
    """Who comes then would begin without what was trained. Members that train still go on."""
    made = job(2)
    made.ended(0)
    assert ranks(made.came(1, LIKE)) == {1: (0, 1)}
    made.ended(1)
    made.started(2, "a")
    assert kinds(made.came(2, LIKE)) == [(2, "dismissed")]


def test_who_counts_as_lost_is_sent_away() -> None:
    """A worker that was cut off and comes back belongs to nothing."""
    made = job(2)
    made.gone(1, "cut off")
    assert kinds(made.came(1, LIKE)) == [(1, "dismissed")]


def one_story(seed: int) -> None:
    """Random starts, deaths and comings: whoever lives belongs, sizes and ranks are right, and nobody is forgotten."""
    chance = random.Random(seed)
    made, told = Membership(), dict[int, list[Any]]()
    coming, living, numbers = set[int](), set[int](), itertools.count()

    def hear(out: Out) -> None:
        for worker, message in out:
            told.setdefault(worker, []).append(message)
            if message.kind in ("lost", "changed"):
                coming.add(worker)  # it will come, when it is there
            elif message.kind == "epoch":
                coming.discard(worker)

    for _ in range(60):
        what = chance.random()
        if what < 0.3:
            worker = next(numbers)
            living.add(worker)
            coming.add(worker)
            hear(made.started(worker, chance.choice("abc")))
        elif what < 0.45 and len(living) > 1:
            worker = chance.choice(sorted(living))
            living.discard(worker)
            coming.discard(worker)
            hear(made.gone(worker, "killed"))
        elif coming:
            worker = chance.choice(sorted(coming))
            coming.discard(worker)
            hear(made.came(worker, LIKE))
    while coming:
        hear(made.came(coming.pop(), LIKE))
    assert made.awaited() == []
    if made.left:  # all that had what was trained are lost
        assert not set(made.ranks) & living
        return
    assert sorted(made.ranks) == sorted(living)
    for worker in living:
        epoch = [message for message in told[worker] if message.kind == "epoch"][-1].fields
        assert (epoch["epoch"], epoch["size"]) == (made.epoch, len(living))
        assert made.ranks[epoch["rank"]] == worker


def test_whatever_happens_an_epoch_begins_with_all_that_live() -> None:
    """In two hundred stories; the last seed printed is that of a failing one."""
    for seed in range(200):
        print("seed", seed)  # of a failing one, the last
        one_story(seed)

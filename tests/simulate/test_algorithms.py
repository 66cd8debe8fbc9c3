"""Each recorded algorithm takes what its formula says, and servers add up."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from thorough import once_more

from workbench.simulate.algorithms import KNOWN, RANKS, SIZES, Time, adasum, table
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.schedule import finish_times, record
from workbench.simulate.servers import Servers
from workbench.transport.host.threads import spawn

pytestmark = pytest.mark.long


FEW = (2, 8, 64)


@cache
def whole_table(ranks: tuple[int, ...]) -> list[Time]:
    """All algorithms and sizes."""
    return table(Wire(2e-5, 1e-9, 1e-6), combine_s=2e-10, ranks=ranks)


@pytest.mark.parametrize("ranks", [FEW, once_more(tuple(RANKS))], ids=["few", "all"])
def test_the_whole_table_is_the_formula(ranks: tuple[int, ...]) -> None:
    """1 KiB to 100 MiB on 2 to 64 or 512 ranks, to rounding; two levels on one rank a host are the ring."""
    rows = whole_table(ranks)
    assert len(rows) == len(ranks) * len(SIZES) * len(KNOWN)
    ring = {(row.ranks, row.nbytes): row.closed_s for row in rows if row.name == "ring allreduce"}
    for row in rows:
        closed_s = ring[row.ranks, row.nbytes] if row.name == "two levels" else row.closed_s
        if closed_s is None:
            assert row.name == "servers"
        else:
            assert row.seconds == pytest.approx(closed_s, rel=1e-9), row


@pytest.mark.parametrize("bits", [0x7F800001, 0x7F800000, 0x7F7FFFFF], ids=["signalling NaN", "infinity", "largest"])
def test_what_memory_held_does_not_matter(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded link brings nothing, so Adasum's receive buffer keeps what was there: no warning comes of it."""

    def held(like: np.ndarray) -> np.ndarray:
        return np.full(like.shape, bits, np.uint32).view(np.float32)

    monkeypatch.setattr("workbench.collectives.adasum.np.empty_like", held)
    record.cache_clear()
    assert record(adasum, 8).dest.tolist() == [[rank ^ step for rank in range(8)] for step in (1, 2, 4)]


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12, 100])
def test_so_it_does_for_any_number_of_ranks(n: int) -> None:
    """Not powers of two, for all that need none."""
    wire = Wire(2e-5, 1e-9, 1e-6)
    rows = [row for row in _table_without_pairs(wire, n) if row.closed_s is not None]
    assert len(rows) >= 6
    for row in rows:
        assert row.seconds == pytest.approx(row.closed_s, rel=1e-9), row


def _table_without_pairs(wire: Wire, n: int) -> list[Time]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "workbench.simulate.algorithms.KNOWN", [one for one in KNOWN if one.name not in ("Adasum", "servers")]
        )
        return table(wire, combine_s=3e-10, ranks=[n], sizes=[10**5])


def test_which_is_best_depends_on_the_size() -> None:
    """On 64 ranks: a ring's 126 messages lose against one round trip for 1 KiB, and win for 100 MiB."""
    found = {(row.name, row.nbytes): row.seconds for row in whole_table(FEW) if row.ranks == 64}
    assert found["Adasum", SIZES[0]] < found["ring allreduce", SIZES[0]]
    assert found["ring allreduce", SIZES[-1]] < found["Adasum", SIZES[-1]] < found["naive allreduce", SIZES[-1]]


@pytest.mark.parametrize(("workers", "pieces"), [(1, 1), (2, 2), (3, 2), (4, 8)])
def test_servers_add_up(workers: int, pieces: int) -> None:
    """On real ranks, with a length that nothing divides."""

    def run(link: Any) -> list[float]:
        array = np.arange(13.0) + link.rank
        Servers(pieces)(link, array, np.add)
        return array.tolist()

    wanted = (workers * np.arange(13.0) + sum(range(workers))).tolist()
    assert spawn(2 * workers, run)[:workers] == [wanted] * workers


@pytest.mark.parametrize("pieces", [2, 8, 32])
def test_servers_take_half_of_a_ring(pieces: int) -> None:
    """(P + 1)/P · K · G, where a ring takes 2(n - 1)/n · K · G."""
    machines = Machines(32, 1, Wire(0, 0), Wire(0, 1e-9))
    found = finish_times(record(Servers(pieces), 32, per_rank=pieces // 2), 1e9, machines).max()
    assert found == pytest.approx((pieces + 1) / pieces)


def test_servers_need_a_half_of_the_ranks() -> None:
    """Three ranks are no pairs."""
    with pytest.raises(ValueError, match="3 ranks are not as many workers as servers"):
        record(Servers(), 3)

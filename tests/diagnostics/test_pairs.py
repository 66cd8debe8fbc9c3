"""What ``workbench doctor --hosts`` says of many hosts; two real ones are in ``tests/testbed``."""

from __future__ import annotations

from workbench.diagnostics.pairs import Speed, listed, sample, slowest


def test_of_many_hosts_the_slowest_pairs_are_listed() -> None:
    """A random sample of different pairs; the slowest comes first, and is named where it is far from the median."""
    names = [f"node{i}" for i in range(20)]
    pairs = sample(names)
    assert len(set(pairs)) == 56
    assert all(one != other for one, other in pairs)
    speeds = {pair: Speed(50.0, 1000.0 + i) for i, pair in enumerate(pairs)} | {pairs[7]: Speed(90.0, 100.0)}
    head, first, *others, last = listed(speeds)
    assert head.split() == ["slowest", "MB/s", "µs"]
    assert first.split() == [pairs[7][0], "→", pairs[7][1], "100", "90"]
    assert (len(others), last) == (9, "median 1028 MB/s")
    assert " → ".join(pairs[7]) in slowest(speeds)[0]


def test_a_pair_that_is_not_far_from_the_median_is_not_named() -> None:
    """Half of the median is still well."""
    speeds = {("a", "b"): Speed(1.0, 100.0), ("b", "a"): Speed(1.0, 60.0)}
    assert slowest(speeds) == []

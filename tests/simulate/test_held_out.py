"""Held-out figures are computed: each moves as its constant does, and only the fitted ones must agree."""

from __future__ import annotations

from functools import cache

import pytest
from thorough import once_more

from workbench.simulate.held_out import NVLINK, PCIE, Constants, HeldOutRow, byteps_gain, fit_tcp_line, rdma_gain, table
from workbench.simulate.machines import Wire

pytestmark = pytest.mark.long


@cache
def rows() -> dict[str, HeldOutRow]:
    """The table by its figures; it takes seconds."""
    return {row.figure: row for row in table()}


def moved(**constants: float) -> dict[str, HeldOutRow]:
    """The table with other constants."""
    return {row.figure: row for row in table(Constants(**constants))}


def test_what_was_fitted_agrees() -> None:
    """Within three points."""
    fitted = {figure: row.error for figure, row in rows().items() if row.fitted}
    assert fitted
    assert max(map(abs, fitted.values())) <= 3, fitted


def test_what_is_held_out_is_said_to_be() -> None:
    """Nine of thirteen rows; each has a source and a figure of its own."""
    held_out = [row for row in rows().values() if not row.fitted]
    assert (len(rows()), len(held_out)) == (13, 9)
    assert all(row.source for row in rows().values())
    assert "held out" in str(held_out[0])
    assert f"{held_out[0].error:+.1f}" in str(held_out[0])


def test_small_models_on_128_gpus_come_out() -> None:
    """Held out, and within two points, over RDMA and over TCP."""
    for name in ("Inception V3", "ResNet-101"):
        assert abs(rows()[f"{name}, 128 GPUs"].error) < 2
        assert abs(rows()[f"{name}, 128 GPUs, TCP"].error) < 2


def test_what_misses_is_not_hidden() -> None:
    """Three published effects are larger than the model's, as the module says."""
    for figure in ("VGG-16, 128 GPUs", "BytePS over Horovod, VGG-16, 20 Gbit/s", "ResNet-101, RDMA over TCP"):
        assert rows()[figure].error < -3


@pytest.mark.thorough
def test_a_wider_line_moves_what_waits_for_it() -> None:
    """VGG-16 scales better."""
    wide = moved(line=1.0)
    assert wide["VGG-16, 128 GPUs"].predicted > rows()["VGG-16, 128 GPUs"].predicted + 0.05
    assert wide["VGG-16, RDMA over TCP"].predicted > rows()["VGG-16, RDMA over TCP"].predicted + 0.05


@pytest.mark.thorough
def test_a_narrower_line_under_tcp_moves_all_that_is_about_tcp() -> None:
    """Every gain of RDMA grows once gradients no longer hide; nothing about RDMA alone changes."""
    slow = moved(tcp_line=0.05)
    for name in ("Inception V3", "ResNet-101"):
        assert slow[f"{name}, RDMA over TCP"].predicted > 0.1
        assert slow[f"{name}, 128 GPUs, TCP"].predicted < rows()[f"{name}, 128 GPUs, TCP"].predicted - 0.05
    served = "BytePS over Horovod, VGG-16, 20 Gbit/s"
    assert slow[served].predicted > rows()[served].predicted + 0.05
    assert slow["VGG-16, 128 GPUs"] == rows()["VGG-16, 128 GPUs"]


@pytest.mark.thorough
def test_what_everybody_loses_comes_off_all_efficiencies() -> None:
    """(1 - common) is a factor of each, and cancels in gains."""
    without = moved(common=0.0)
    for figure, row in rows().items():
        factor = 1.0 if " over " in figure else 0.9
        assert row.predicted == pytest.approx(without[figure].predicted * factor), figure


@pytest.mark.parametrize("gain", [once_more(0.1), 0.3, once_more(0.8)])
def test_the_fit_finds_what_it_is_asked_for(gain: float) -> None:
    """The line that it finds gives the gain, within its tolerance."""
    assert rdma_gain("VGG-16", 0.85, fit_tcp_line(gain)) == pytest.approx(gain, abs=0.002)


def test_servers_gain_at_most_what_they_save() -> None:
    """2(n - 1)/n to (P + 1)/P where the network is everything, and nothing where it is free."""
    starved = byteps_gain(0.1, 1.0, Wire(0, 0))
    assert starved == pytest.approx(2 * 63 / 64 / (17 / 16) - 1, abs=0.02)
    assert byteps_gain(1e5, 1.0, Wire(0, 0)) == pytest.approx(0.0, abs=0.01)
    assert byteps_gain(20.0, 0.6, NVLINK) > byteps_gain(100.0, 0.85, PCIE)


def test_nonsense_is_named() -> None:
    """A part above 1, a line of nothing, and a gain out of reach."""
    with pytest.raises(ValueError, match=r"line is 1\.5: a fraction between 0 and 1"):
        Constants(line=1.5)
    with pytest.raises(ValueError, match="tcp_line is 0"):
        Constants(tcp_line=0)
    with pytest.raises(ValueError, match="tcp_line is None"):
        Constants(tcp_line=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="A gain of 100000% is impossible"):
        fit_tcp_line(1000.0)

"""Numbers with units, as the sliders and pictures write them."""

from __future__ import annotations

from collections.abc import Sequence

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNTS = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def nbytes(value: float) -> str:
    """Bytes; 1 MB is 10⁶ bytes.

    Example:
        >>> nbytes(0), nbytes(1.2e11), nbytes(3e12), nbytes(16_000_000)
        ('0 bytes', '120 GB', '3 TB', '16 MB')
    """
    return _scaled(value, _BYTES, "bytes")


def count(value: float) -> str:
    """How many.

    Example:
        >>> count(7.5e9), count(25_600_000), count(650)
        ('7.5 billion', '25.6 million', '650')
    """
    return _scaled(value, _COUNTS, "").rstrip()


def seconds(value: float) -> str:
    """Seconds.

    Example:
        >>> seconds(0.1), seconds(2e-5), seconds(0.0), seconds(1.5)
        ('100 ms', '20 µs', '0 s', '1.5 s')
    """
    if value <= 0:
        return "0 s"
    factor, unit = next(((factor, unit) for factor, unit in _SECONDS if value >= factor * 0.9995), _SECONDS[-1])
    return f"{_digits(value / factor)} {unit}"


def series(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20 … between two limits: the stops of a logarithmic slider.

    Example:
        >>> series(1, 100), series(0.1, 1)
        ([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0], [0.1, 0.2, 0.5, 1.0])
    """
    stops = [float(f"{digit}e{power}") for power in range(-12, 15) for digit in (1, 2, 5)]
    return [stop for stop in stops if low <= stop <= high]


def doubled(low: int, high: int) -> list[int]:
    """Powers of two between two limits, for numbers of ranks.

    Example:
        >>> doubled(2, 16)
        [2, 4, 8, 16]
    """
    return [2**power for power in range(high.bit_length()) if low <= 2**power <= high]


def _scaled(value: float, units: Sequence[tuple[float, str]], base: str) -> str:
    factor, unit = next(((factor, unit) for factor, unit in units if value >= factor * 0.9995), (1.0, base))
    return f"{_digits(value / factor)} {unit}"


def _digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

"""The names of all predictions in the lessons: what ``progress()`` knows."""

from __future__ import annotations

# fmt: off
NAMES = (
    "00.accuracy", "00.same",
    "01.kernel", "01.alone", "01.order",
    "02.rounds", "02.allgather", "02.hang",
    "03.bytes", "03.growth", "03.small",
    "04.uneven", "04.ring", "04.staleness", "04.race",
    "05.seeds", "05.forgotten", "05.join",
    "06.hooks", "06.state", "06.overlap",
    "07.packed", "07.threshold", "07.announced",
    "08.stopwatch", "08.tiny", "08.best",
    "09.rate", "09.warmup", "09.control",
    "10.copies", "10.seventh", "10.forgotten",
    "11.named", "11.apart",
    "12.pinned", "12.slowest", "12.turns",
    "13.batch", "13.result",
    "14.same", "14.jobs",
    "15.mtbf", "15.interval", "15.bits",
    "16.bandwidth", "16.layer", "16.front",
    "17.bits", "17.pod",
    "18.holds", "18.bytes", "18.stage3", "18.measured",
    "19.by_class", "19.factors", "19.memory", "19.pays",
    "20.two_layers", "20.derivative", "20.bubble", "20.smaller",
    "21.late", "21.thread", "21.order", "21.skipped",
    "22.places", "22.first", "22.steps", "22.memory",
    "23.parts", "23.slow",
    "24.attention", "24.masters", "24.checkpoints", "24.no_sync",
    "25.peak", "25.gathers",
    "26.words", "26.sequence", "26.balance",
    "27.tied", "27.interleaved", "27.capacity",
    "28.mfu", "28.straggler", "28.layout", "28.context",
)
# fmt: on

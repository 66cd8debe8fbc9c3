"""What a training step takes on n ranks, by discrete events: from the real algorithms and the real fusion planner.

Read in this order: ``machines`` (racks, hosts, wires), ``schedule`` (what an algorithm sends, timed), ``algorithms``
(all of them beside their formulas), ``models`` (layers), ``delays`` (stragglers, the coordinator), ``steps`` (a step of
training), ``published`` (the figures of 512 GPUs), ``levels`` and ``ideas`` (what would beat them), ``servers`` and
``held_out`` (figures that nothing was fitted to, and what misses). ``export/`` writes a step for other tools.
"""

from typing import TYPE_CHECKING

from workbench.common.faces import when_asked as _when_asked

__all__ = [
    "algorithms",
    "delays",
    "export",
    "held_out",
    "ideas",
    "levels",
    "machines",
    "measured",
    "models",
    "published",
    "schedule",
    "servers",
    "steps",
]

if TYPE_CHECKING:
    from workbench.simulate import algorithms as algorithms
    from workbench.simulate import delays as delays
    from workbench.simulate import export as export
    from workbench.simulate import held_out as held_out
    from workbench.simulate import ideas as ideas
    from workbench.simulate import levels as levels
    from workbench.simulate import machines as machines
    from workbench.simulate import measured as measured
    from workbench.simulate import models as models
    from workbench.simulate import published as published
    from workbench.simulate import schedule as schedule
    from workbench.simulate import servers as servers
    from workbench.simulate import steps as steps
else:
    __getattr__ = _when_asked(__name__, *__all__)  # each says what it needs


def __dir__() -> list[str]:
    return __all__

"""When gradients are submitted: each once, a group when it is complete, the rest at the step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request
from workbench.core.pending import Entry
from workbench.errors import MismatchError
from workbench.torch.gradients.by_name import group_fields
from workbench.torch.gradients.dense import DenseGradients

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = [f"layer{i}" for i in range(8)]


class Source:
    """Gradients in groups; what is not ``dense`` is not taken. Its results are there at once, or fail."""

    def __init__(
        self, groups: Sequence[Sequence[str]] = (), as_one: bool = False, dense: Sequence[str] = NAMES
    ) -> None:
        self.groups = {name: tuple(group) for group in groups for name in group}
        self.as_one, self.dense, self.error = as_one, dense, None
        self.passes = 1
        self.log: list[str] = []

    def prepare(self, name: str | None) -> None:
        self.log.append(f"prepare {name}")

    def group_of(self, name: str) -> Sequence[str]:
        return self.groups.get(name, (name,))

    def take(self, name: str) -> bool:
        self.log.append(f"take {name}")
        return name in self.dense

    def entries(self, names: Sequence[str]) -> list[Entry] | Entry:
        if self.as_one and len(names) > 1:
            return self.entry("+".join(names))
        return [self.entry(name) for name in names]

    def entry(self, name: str) -> Entry:
        handle = Handle(name)
        handle.finish(f"sum of {name}", self.error)
        return Entry(Request(name, Kind.ALLREDUCE), None, None, handle)

    def submit(self, entries: list[Entry], at_once: bool = False) -> list[Handle]:
        self.log.append(f"submit {' '.join(each.request.name for each in entries)}{' at once' if at_once else ''}")
        return [each.handle for each in entries]

    def submitted(self) -> list[str]:
        return [line.removeprefix("submit ") for line in self.log if line.startswith("submit ")]


def gradients_of(source: Source, passes: int = 1) -> DenseGradients:
    """Over the source."""
    source.passes = passes
    return DenseGradients(source, source.submit)  # type: ignore[arg-type]


@st.composite
def groupings(draw: st.DrawFn) -> list[list[str]]:
    """Some of the names, in groups of any size."""
    names = draw(st.permutations(NAMES))
    cuts = sorted(draw(st.sets(st.integers(1, len(names)), min_size=1)))
    return [names[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


@PROPERTY
@given(groupings(), st.permutations(NAMES), st.integers(0, len(NAMES)), st.booleans(), st.integers(1, 3))
def test_every_gradient_is_submitted_once(
    groups: list[list[str]], order: list[str], there: int, as_one: bool, passes: int
) -> None:
    """In any order and any groups, also those that a rank has not; a group when its last one is ready, not before."""
    source = Source(groups, as_one)
    gradients = gradients_of(source, passes)
    for step in range(2):
        source.log.clear()
        for each in range(passes):
            done: set[str] = set()
            for name in order[:there]:
                before = len(source.submitted())
                gradients.ready(name, keep=False)
                done.add(name)
                complete = each == passes - 1 and done.issuperset(source.group_of(name))
                assert len(source.submitted()) - before == complete
        assert gradients.begun == (there > 0)
        assert gradients.in_flight == bool(source.submitted())
        results = gradients.finish(NAMES)
        assert sorted(results) == sorted(NAMES), step
        sent = " ".join(source.submitted()).replace(" at once", "").replace("+", " ")
        assert sorted(sent.split()) == sorted(NAMES)
        assert all(name in results[name] for name in NAMES)
        assert all(line.endswith(" at once") == ("+" in line) for line in source.submitted())
        assert not gradients.begun


def test_what_is_planned_may_change_until_something_is_in_flight() -> None:
    """The source is asked before each gradient of a step, until the first submission; and once if none was ready."""
    source = Source([["layer0", "layer1"]])
    gradients = gradients_of(source)
    for name in ("layer1", "layer0", "layer2"):
        gradients.ready(name, keep=False)
    assert [line for line in source.log if "prepare" in line] == ["prepare layer1", "prepare layer0"]
    gradients.finish(NAMES)
    source.log.clear()
    gradients.finish(NAMES)
    assert source.log[0] == "prepare None"
    assert sum("prepare" in line for line in source.log) == 1
    source.log.clear()
    assert gradients.finish(()) == {}
    assert source.log == []


def test_a_gradient_that_stays_sparse_is_left_to_the_step() -> None:
    """It is not submitted when it is ready, and does not count as a gradient that is."""
    source = Source(dense=NAMES[1:])
    gradients = gradients_of(source)
    gradients.ready("layer0", keep=False)
    assert not gradients.begun
    assert source.submitted() == []
    assert "layer0" in gradients.finish(NAMES)


def test_too_many_passes() -> None:
    """A gradient that has been submitted must not be ready again; it is refused before it is touched."""
    source = Source()
    gradients = gradients_of(source)
    gradients.ready("layer3", keep=False)
    source.log.clear()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        gradients.ready("layer3", keep=False)
    assert source.log == []
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        gradients.ready("layer3", keep=True)


def test_a_failed_reduction_ends_the_step() -> None:
    """The error is raised, and the next step begins from the start."""
    source = Source()
    source.error = MismatchError("shapes differ")  # type: ignore[assignment]
    gradients = gradients_of(source)
    gradients.ready("layer1", keep=False)
    with pytest.raises(MismatchError):
        gradients.finish(NAMES)
    assert not gradients.begun
    assert not gradients.in_flight
    source.error = None
    assert gradients.finish(NAMES)["layer1"] == "sum of layer1"


def test_a_group_is_named_after_all_its_members() -> None:
    """Two ranks whose groups differ never have one name for them; a single gradient needs none."""
    assert group_fields(["a"]) == {}
    names = {group_fields(each)["group"] for each in (["a", "b"], ["b", "a"], ["a", "b", "c"], ["a", "bc"])}
    assert len(names) == 4
    assert group_fields(["a", "b"])["group_size"] == 2

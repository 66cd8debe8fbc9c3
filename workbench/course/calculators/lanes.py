"""The first calculator's picture: lanes of one or several settings, with what each comes to."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.course.calculators import units
from workbench.course.calculators.steps import StepTimes, Training, calculate
from workbench.course.schedules.picture import lanes_picture
from workbench.observe.figure import Figure


def lanes(settings: Mapping[str, Training], title: str = "A step") -> Figure:
    """What the ranks compute, what the network carries, and where the ranks wait.

    Args:
        settings: by name; one without a name is described.
        title: what they have in common.

    Example:
        >>> lanes({"two ranks": Training(ranks=2)})
        A step: two ranks: 101 ms, efficiency 99%
    """
    steps = {name: calculate(training) for name, training in settings.items()}
    told = "; ".join(
        f"{name}: " * bool(name) + f"{units.seconds(step.step_s)}, efficiency {step.efficiency:.0%}"
        for name, step in steps.items()
    )
    return lanes_picture(
        {
            f"{name or described(step.training)}\n{came_to(step)}": (step.events, step.step_s)
            for name, step in steps.items()
        },
        f"{title}: {told}",
    )


def came_to(step: StepTimes) -> str:
    """A step in a line.

    Example:
        >>> came_to(calculate(Training()))
        'hidden: 102 ms a step, 2.03 ms of it exposed; 10 messages, 20.3 ms on the network; efficiency 98%'
    """
    messages = f"{step.messages} message" + "s" * (step.messages != 1)
    return (
        f"{step.verdict}: {units.seconds(step.step_s)} a step, {units.seconds(step.exposed_s)} of it exposed; "
        f"{messages}, {units.seconds(step.network_s)} on the network; efficiency {step.efficiency:.0%}"
    )


def described(training: Training) -> str:
    """The setting in a line.

    Example:
        >>> described(Training())
        'n = 8, α = 20 µs, 1/β = 10 GB/s, 100 MB of gradients, buckets of 10 MB, computing 100 ms, 50 equal layers'
    """
    speed = f"{units.nbytes(1 / training.beta_s)}/s" if training.beta_s else "infinite"
    bucket = f"buckets of {units.nbytes(training.bucket_bytes)}" if training.bucket_bytes else "no buckets"
    return (
        f"n = {training.ranks}, α = {units.seconds(training.alpha_s)}, 1/β = {speed}, "
        f"{units.nbytes(training.gradient_bytes)} of gradients, {bucket}, "
        f"computing {units.seconds(training.compute_s)}, {training.network}"
    )

"""Gradients are averaged once, when they are complete, and before they are read."""

from __future__ import annotations

import pytest
from converting import TRAINING, decided

pytest.importorskip("libcst")

from workbench.convert.conversion import convert


def test_a_step_in_another_function_is_left_to_decide() -> None:
    """Where the optimizer has no name at ``backward()``, and steps under a condition."""
    text = TRAINING.replace("        optimizer.step()", "        if epoch: update()")
    text += "def update():\n    optimizer.step()\n"
    assert "the optimizer's step() is in another function" in decided(text)[0][1]


def test_a_function_that_gets_the_optimizer_may_read_gradients() -> None:
    """They are averaged before; once, and not for each parameter of a loop."""
    text = TRAINING.replace("        optimizer.step()", "        shorten(optimizer)\n        optimizer.step()")
    lines = [line.strip() for line in convert("train.py", text).after.splitlines()]
    assert lines[lines.index("shorten(optimizer)") - 1] == "optimizer.synchronize()"
    loop = "        for p in model.parameters():\n            p.grad.clamp_(-1, 1)\n        optimizer.step()"
    lines = [
        line.strip()
        for line in convert("train.py", TRAINING.replace("        optimizer.step()", loop)).after.splitlines()
    ]
    assert lines[lines.index("for p in model.parameters():") - 1] == "optimizer.synchronize()"

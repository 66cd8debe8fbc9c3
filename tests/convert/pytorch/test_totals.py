"""What a training loop adds up is that of all samples, as on one rank."""

from __future__ import annotations

import pytest
from converting import TRAINING, decided

pytest.importorskip("libcst")

from workbench.convert.conversion import convert


def test_a_sum_that_goes_on_over_epochs_is_left_to_decide() -> None:
    """A second reduction would count the first again."""
    text = TRAINING.replace("    correct = 0\n", "").replace("for epoch", "correct = 0\nfor epoch")
    assert "hvd.allreduce(…)" in decided(f"{text}print(correct)\n")[0][1]
    assert not decided(text)


def test_within_the_loop_a_sum_is_of_own_samples() -> None:
    """Who divides it by the number of all has to decide; by the own number of samples is right."""
    assert "may count all samples" in decided(TRAINING + "        print(correct / len(x))\nprint(correct)\n")[0][1]
    assert not decided(TRAINING + "        print(correct / len(yb))\nprint(correct)\n")


@pytest.mark.parametrize("test", ["correct / 64 > 0.9", "loss.item() < 0.1", "out.sum() > 0"])
def test_a_loop_that_is_left_by_own_samples_is_left_to_decide(test: str) -> None:
    """Unless all ranks have the same number."""
    within = decided(f"{TRAINING}        if {test}: break\n")
    assert "decide about break" in within[0][1]
    assert bool(decided(f"{TRAINING}    if {test}: break\n")) == ("correct" not in test)


def test_what_is_put_together_is_left_to_decide() -> None:
    """Predictions in a list, counts in a table; not a list of losses, nor what nobody reads."""
    put = {"seen.extend(out.tolist())": "allgather_object", "seen[yb[0]] += 1": "allreduce", "seen.append(1)": ""}
    for line, words in (put | {"seen.append(loss.item())": ""}).items():
        text = f"seen = []\n{TRAINING}        {line}\n"
        assert not decided(text), line
        found = decided(f"{text}print(seen)\n")
        assert [words in each[1] for each in found] == [True] * bool(words), line
    rate = "    if loss.item() < 1:\n        pass\n    else:\n        optimizer.param_groups[0]['lr'] *= 0.5\n"
    assert "decide about the learning rate" in decided(TRAINING + rate)[0][1]


def test_a_validation_loss_is_all_ranks() -> None:
    """Also where its loop uses the names of the training's."""
    loop = "    total = 0\n    for xb, yb in DataLoader(data):\n        out = model(xb)\n        loss = out.mean()\n"
    assert not decided(f"{TRAINING}{loop}        total += loss.item()\n    if total < 1:\n        break\n")


def test_a_scheduler_gets_the_mean_of_the_ranks() -> None:
    """Of a loss that is a rank's own."""
    text = TRAINING + "    scheduler.step(loss.item())\n"
    assert "scheduler.step(hvd.allreduce(torch.as_tensor(loss.item())).item())" in convert("train.py", text).after

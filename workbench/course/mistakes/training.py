"""Of the capstone, lesson 13."""

from __future__ import annotations

from workbench.course.judging.mistake import Mistake

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "13.capstone": (
        Mistake(("init() makes them meet",), "Which call of hvd comes before all others?"),
        Mistake(
            ("was seen by no rank",), "What happens to the last samples of an epoch, which do not fill a whole batch?"
        ),
        Mistake(
            ("has the order of epoch 0",),
            "batches(…, epoch=epoch) shuffles for each epoch. Which number does your loop give it?",
        ),
        Mistake(
            ("training passes in",), "Do all ranks train? Look for an if around the loop, and for a loop without steps."
        ),
        Mistake(
            ("was seen",),
            "Put the ranks' parts of one step side by side. Do they overlap, or is something added to fill a batch?",
        ),
        Mistake(
            ("Each step takes a whole batch",),
            "batch is the number of samples of all ranks together. How many of them does one rank take?",
        ),
        Mistake(
            ("No rank has more to do",),
            "Each step waits for the rank with the most samples. Give all ranks equally many.",
        ),
        Mistake(
            ("begin with the same weights",),
            "Every rank has its own weights. Which call sends rank 0's weights to all ranks?",
        ),
        Mistake(
            ("The weights are the same on all ranks",),
            "They begin alike and end apart. Does optimizer.step() see the average of the gradients, or this rank's "
            "own?",
        ),
        Mistake(
            ("zero_grad() is missing",), "What does backward() do with a gradient that is there already? It adds to it."
        ),
        Mistake(
            ("times too long",), "What averages the gradients, and what else is multiplied by the number of ranks?"
        ),
        Mistake(
            ("times too short",),
            "The average over n ranks of the sums of their losses: by what is it smaller than the sum over all?",
        ),
        Mistake(
            ("divided by the full batch",),
            "How many samples has the last step on all ranks? min(batch, n - step * batch).",
        ),
        Mistake(
            ("from one order",),
            "The order of an epoch must be the same on all ranks. Does your seed depend on the rank?",
        ),
        Mistake(
            ("mean of the ranks' means",),
            "Is the mean of two means that of all samples, where one rank has 33 of them and the other 32?",
        ),
        Mistake(
            ("those of one process",),
            "Write down the gradient of one step on two ranks, and on one. Where do they differ?",
        ),
        Mistake(
            ("All ranks report the accuracy",),
            "Right answers can be added up over the ranks, and so can counts. On which data does your function "
            "compute the accuracy?",
        ),
        Mistake(("SGD with lr 0.2",), "The text names the optimizer, its rate and its momentum, and nothing else."),
    ),
}

__all__ = ["MISTAKES"]

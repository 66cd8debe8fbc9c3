"""The steps of a conversion: their names, what goes wrong without each, and the words of the comments."""

from __future__ import annotations

from workbench.common import script_steps

STEPS = {**script_steps.STEPS, 7: "Let rank 0 print and save"}
WITHOUT = {
    **script_steps.WITHOUT,
    7: "each line appears once for each rank, and the ranks write to one file at the same time",
}
COMMENTS = {
    1: "this process learns its rank, and how many there are",
    2: "the ranks share a batch, so all of them together take as many samples as before, if their number divides it",
    3: "each rank of a machine has its own GPU",
    4: "each rank reads its own share of the data",
    5: "all ranks begin with the weights of rank 0",
    6: "each step uses the average of all ranks' gradients",
    7: "only rank 0 prints and saves",
}


MEAN_OR_SUM = (
    "is this loss a mean over the samples of the batch, as is taken here, or a sum? Then op=hvd.Sum belongs into "
    "{}(…). With --loss mean or --loss sum it is not asked."
)


def comment(step: int, text: str = "") -> str:
    """The comment above a changed line.

    Example:
        >>> comment(1)
        '# Step 1: this process learns its rank, and how many there are'
    """
    return f"# Step {step}: {text or COMMENTS[step]}"

"""Of the cards of lesson 11. A hint asks about what was seen, and does not name the card's cause."""

from __future__ import annotations

from workbench.course.judging.mistake import Mistake

_IDLE = Mistake(
    ("is idle", "are idle"),
    "The idle ranks' function has returned. Which line did the waiting rank reach that they did not?",
)
_CIRCLE = Mistake(
    ("The ranks wait for each other",),
    "Nobody is missing. Write down for each rank the name that it waits for, and where it submits the others'.",
)

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "11.epoch": (
        Mistake(
            ("caught the error",),
            "The missing ranks are still missing. How many steps does each rank make, and how can all ranks know that "
            "number?",
        ),
        Mistake(("is idle", "are idle"), "How many batches has each rank? How often does each submit 'gradient'?"),
        Mistake(
            ("the weights",),
            "All ranks end, but with other weights. In which steps do all of them take part, and over how many ranks "
            "is the gradient of the other steps averaged?",
        ),
        Mistake(("the number of steps",), "Every rank must return the same number. Which number do all of them have?"),
    ),
    "11.validate": (
        Mistake(
            ("The ranks wait for each other",),
            "One rank waits in an allreduce, the others in another call. Are these the same collective?",
        ),
        _IDLE,
        Mistake(
            ("accuracy: your result",), "Whose answers does this number count? The share over all ranks is asked for."
        ),
        Mistake(("the log",), "Which ranks may write into the log? And which of them must compute before?"),
    ),
    "11.gradients": (
        _CIRCLE,
        Mistake(
            ("average of",),
            "Two different tensors were added. How does the workbench know which tensors belong together?",
        ),
    ),
    "11.two_heads": (
        _CIRCLE,
        Mistake(
            ("Mismatched",),
            "A gradient has the shape of its weights. Which shape does the array have that you submit instead of None?",
        ),
        Mistake(
            ("weights of",),
            "A gradient that is missing counts as zero, and the average is taken over all ranks. Which rank makes no "
            "step, or has a different average?",
        ),
    ),
    "11.restore": (
        Mistake(
            ("Mismatched data types",), "Look at the two dtypes. Where does each of them come from, and when is it set?"
        ),
        Mistake(("is on rank 0 only",), "Only one rank can open the file. How do the others get its contents?"),
        _IDLE,
        Mistake(("expected float32",), "The ranks agree now, but the dtype is not the required one."),
    ),
    "11.start": (
        Mistake(
            ("fingerprints differ",),
            "Is there a difference before the first step already? A function returns its result; is it assigned?",
        ),
        Mistake(
            ("the weights",),
            "Whose weights should all ranks have before the first step, and whose noise should each rank draw?",
        ),
    ),
    "11.clip": (
        Mistake(("added up, not averaged",), "One process takes the mean over all data. By what is the sum divided?"),
        Mistake(("each number was limited",), "Clipping keeps the gradient's direction. Does your line keep it?"),
        Mistake(
            ("a short gradient",), "Which gradients may be left as they are? What does your function do with them?"
        ),
        Mistake(
            ("one n-th of the right", "of the sum"),
            "Which length must not exceed the limit: that of the sum, or of the average?",
        ),
        Mistake(
            ("the weights",),
            "Compute the smallest case on paper, as one process with all data. Of which gradient does it measure the "
            "length?",
        ),
    ),
    "11.shards": (
        Mistake(
            ("another order in every epoch",), "Which seed does each epoch's order come from? Is it one for all ranks?"
        ),
        Mistake(
            ("all samples, each once",),
            "Write down both ranks' samples of the smallest case. Which order did each of them take its own from?",
        ),
    ),
    "11.seconds": (
        Mistake(
            ("not the time before",),
            "Ranks begin at different times. From which moment on is train() measured on each rank?",
        ),
        Mistake(("says None",), "Which ranks must know the result? Which verb sends it to all of them?"),
        Mistake(
            ("the slowest rank's time",),
            "When have all ranks done it? Look for that number among the ranks' own times.",
        ),
    ),
    "11.accuracy": (
        Mistake(
            ("your result",),
            "Count by hand over all samples: how many are right, and how many are there? Which two sums do you need?",
        ),
    ),
    "11.pipeline": (
        Mistake(
            ("Deadlock",),
            "A large message is sent when its receiver is ready. Does any rank receive while all ranks send?",
        ),
    ),
    "11.ring": (
        Mistake(
            ("nobody sends",), "Every rank waits for a message that its neighbour sends later. Which rank must begin?"
        ),
        Mistake(
            ("They wait in a circle",), "When is a message of this length sent? Which rank is receiving at that moment?"
        ),
        Mistake(
            ("the sum",), "After n - 1 steps each rank should have received each x once. Which x is in the sum twice?"
        ),
    ),
}

__all__ = ["MISTAKES"]

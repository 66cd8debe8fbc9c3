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
            "The ranks that did not come are still missing. How many steps does each rank make, and who could know?",
        ),
        Mistake(("is idle", "are idle"), "How many batches has each rank? How often does each submit 'gradient'?"),
        Mistake(
            ("the weights",),
            "All ranks end, but with other weights. In which steps do all of them take part, and over how many ranks "
            "is the gradient of the other steps averaged?",
        ),
        Mistake(("the number of steps",), "Every rank is to return the same number. Which one do all of them have?"),
    ),
    "11.validate": (
        Mistake(
            ("The ranks wait for each other",),
            "One rank waits in an allreduce, the others in another call. Are these the same collective?",
        ),
        _IDLE,
        Mistake(("accuracy: yours",), "Whose answers does this number count? The share over all ranks is asked for."),
        Mistake(("the log",), "Which ranks may write into the log? And which of them must compute before?"),
    ),
    "11.gradients": (
        _CIRCLE,
        Mistake(
            ("average of",),
            "The numbers of two tensors were added. By what does the workbench know which belong together?",
        ),
    ),
    "11.two_heads": (
        _CIRCLE,
        Mistake(
            ("Mismatched",),
            "A gradient has the shape of its weights. Which shape has what is submitted in the place of None?",
        ),
        Mistake(
            ("weights of",),
            "A gradient that is missing counts as zero, and the average is taken over all ranks. Whose step is left "
            "out, or has something else in the average?",
        ),
    ),
    "11.restore": (
        Mistake(
            ("Mismatched data types",), "Look at the two dtypes. Where does each of them come from, and when is it set?"
        ),
        Mistake(("is on rank 0 only",), "Only one rank can open the file. How do the others get what is in it?"),
        _IDLE,
        Mistake(("expected float32",), "The ranks agree now, on another dtype than the one that is asked for."),
    ),
    "11.start": (
        Mistake(
            ("fingerprints differ",),
            "Is there a difference before the first step already? A function returns its result; what takes it?",
        ),
        Mistake(
            ("the weights",),
            "Whose weights should all ranks have before the first step, and whose noise should each rank draw?",
        ),
    ),
    "11.clip": (
        Mistake(
            ("one n-th of the right", "of the sum"), "What is to be no longer than the limit: the sum, or the average?"
        ),
        Mistake(
            ("the weights",),
            "Compute the smallest case on paper as one process with all data would. Of which gradient does it measure "
            "the length?",
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
            ("not the time before",), "Ranks come at different times. From which moment on is train() measured on each?"
        ),
        Mistake(("says None",), "Which ranks are to know the result? Which verb gives it to all of them?"),
        Mistake(
            ("the slowest rank's time",),
            "When have all ranks done it? Look for that number among the ranks' own times.",
        ),
    ),
    "11.accuracy": (
        Mistake(
            ("yours",),
            "Count by hand over all samples: how many are right, and how many are there? Which two sums are those?",
        ),
    ),
    "11.pipeline": (
        Mistake(
            ("Deadlock",),
            "A large message leaves when its receiver is there. Who receives while all wait to have sent?",
        ),
    ),
    "11.ring": (
        Mistake(("nobody sends",), "Every rank waits for a message that its neighbour sends later. Who must begin?"),
        Mistake(
            ("They wait in a circle",),
            "When does a message of this length leave? Who of them is receiving at that moment?",
        ),
        Mistake(("the sum",), "After n - 1 steps each x should have come past once. Which is in the sum twice?"),
    ),
}

__all__ = ["MISTAKES"]

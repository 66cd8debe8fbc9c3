"""A usual mistake: by which words of a verdict it is known, and the hint that helps then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """A usual mistake, and what helps then.

    Args:
        verdict: words of which one is in what ``check()`` says of it.
        hint: what ``hint()`` says first.
        cause: what ``check()`` says before an exception of Python's or numpy's own, which knows nothing of the lesson.
    """

    verdict: tuple[str, ...]
    hint: str
    cause: str = ""


GENERAL = (
    Mistake(
        ("belongs to the caller",),
        "The caller still uses this object. Make a new one, or copy it before you change it.",
    ),
    Mistake(
        ("Is there a return?", "your result is None"),
        "A function without return gives None. On which ranks, and in which branch, does your function return nothing?",
    ),
    Mistake(
        ("never waited for",),
        "isend and irecv only begin a message. Keep what they return, and call wait() on each before the end.",
    ),
    Mistake(
        ("that nobody received",), "For each send write down which rank receives it, and in which call. Which has none?"
    ),
    Mistake(
        ("must not lie in the same memory",),
        "One array is read while the other one is filled: receive into a second array, such as np.empty_like(x).",
    ),
    Mistake(
        ("was changed before wait()",),
        "Until wait() returns, the array belongs to the message. Give each message its own array.",
    ),
    Mistake(
        ("your result is of type", "your result has shape"),
        "Read in the task what is to be returned: one number, an array of which shape, or a list in which order?",
    ),
    Mistake(
        ("has dtype", "bits: they were rounded"),
        "Which dtype do the numbers have at the beginning? Which line changes it?",
    ),
    Mistake(("ends the whole process",), "return ends a function. exit() would end the kernel, or a rank of the job."),
    Mistake(
        ("waits for itself",),
        "A rank that is its own neighbour must be ready to receive while it sends. Which number has the other rank?",
    ),
    Mistake(
        ("wait for each other",),
        "Write down in which call each rank waits. Which rank must do something else first, so that the others can go "
        "on?",
    ),
    Mistake(
        ("waits in", "is idle", "can never complete"),
        "Which rank has returned, or is in another call, while this one waits? All must make that call.",
    ),
    Mistake(("n times the right",), "Something was added up over n ranks. Is the sum asked for, or the mean?"),
    Mistake(("one n-th of the right", "half of the right"), "What was divided, and how often? Do it once on paper."),
    Mistake(
        ("should count",),
        "How many samples has each rank? Count on paper how much one sample of each rank weighs in your result.",
    ),
    Mistake(("Look at what makes",), "Which lines does this result come from that the right ones do not come from?"),
    Mistake(
        ("the smaller cases were right",),
        "What does your function do differently when an array is long? Does it test a length or a number of bytes?",
    ),
    Mistake(
        ("'NoneType' object", "cannot unpack non-iterable NoneType", "and 'NoneType'", "'NoneType' and"),
        "Which line gave None? A variable may have no other value yet; and reduce() and gather() give their result to "
        "the root alone: all the others get None.",
        "a value is None here: it has no other value yet, or it is what reduce() or gather() gives to all but the root",
    ),
    Mistake(("did not end within",), "Print the variables in the loop's condition. Does every iteration change them?"),
)
"""What may go wrong in any exercise; looked at after the exercise's own."""

__all__ = ["GENERAL", "Mistake"]

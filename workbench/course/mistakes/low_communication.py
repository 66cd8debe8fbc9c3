"""Of lesson 19."""

from __future__ import annotations

from workbench.course.judging.mistake import Mistake

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "19.local_sgd": (
        Mistake(
            ("after the last average",), "Seven steps, an average every three: which step comes after the last one?"
        ),
        Mistake(("one step off",), "Write down after which steps the ranks average. Is the first one number 0 or 1?"),
        Mistake(("in every step", "averaged once", "nothing was averaged"), "Count the averages. When is one due?"),
        Mistake(("added up",), "Two ranks have equal weights: what is the result, and what should it be?"),
        Mistake(("gradients were averaged",), "Each rank steps alone with its own gradient. What is averaged then?"),
        Mistake(("bytes from the busiest rank",), "How many averages are due, and how long is w? What else is sent?"),
    ),
    "19.outer_step": (
        Mistake(
            ("start - w", "goes uphill"),
            "A step goes against the gradient: start - lr * gradient. In which direction does your step go?",
        ),
        Mistake(("plain momentum",), "Compute the new velocity first. The step adds it to the change once more."),
        Mistake(("added up",), "The outer gradient is the ranks' average."),
        Mistake(("its own change",), "All ranks must end with the same w. Which value must they agree on first?"),
        Mistake(
            ("it begins at start", "outer optimizer is missing"), "Where does the outer step begin, and how long is it?"
        ),
        Mistake(("not the old one",), "Which velocity does the next round begin with?"),
    ),
    "19.powersgd": (
        Mistake(
            ("unpack", "must be real number", "matmul: Input operand", "inhomogeneous", "unsupported operand"),
            "np.linalg.qr returns two matrices, Q and R. Which of them has orthonormal columns?",
            "np.linalg.qr gives a pair (Q, R), and p is to be Q: qr(…)[0]",
        ),
        Mistake(
            ("add the error", "not taken off"),
            "The part that was left out last time must be sent now: where do you add it?",
        ),
        Mistake(
            ("take gradient + error", "the new error is lost", "Each rank's own part"),
            "The error is the matrix that this rank wanted to send, minus the part that p can express. Which matrices "
            "are these?",
        ),
        Mistake(("average first", "p of its own"), "All ranks need one p. Which comes first, the average or qr?"),
        Mistake(("second factor",), "Two averages: which matrix is sent in the second one, and is it divided by n?"),
        Mistake(("not orthonormal",), "p @ p.T projects only if p's columns are orthonormal."),
        Mistake(("nothing was compressed",), "Which two small matrices stand for the large one?"),
        Mistake(("bytes from the busiest rank",), "Send (m, r) and (n, r), and nothing of the size m times n."),
    ),
}

__all__ = ["MISTAKES"]

"""Of lesson 16."""

from __future__ import annotations

from workbench.course.judging.mistake import Mistake

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "16.fit_link": (
        Mistake(("2 (ranks - 1) steps",), "How many steps does the ring make on so many ranks? Each pays one latency."),
        Mistake(("a step sends bytes / ranks",), "How many bytes does one rank send in one step of the ring?"),
        Mistake(("subtract them",), "Draw time over bytes: two points. What is the slope of the line through them?"),
        Mistake(("chunks twice",), "The ring goes around once to add up. Why does it go around a second time?"),
        Mistake(("the latency is left out",), "What does the line through both points say of an array without bytes?"),
        Mistake(
            ("slow repetitions",), "Sort the fifteen times. Which place of the list do three slow ones never reach?"
        ),
        Mistake(
            ("No constant is negative",),
            "Noise can make the short array the slower one. What is the least that a latency, or a byte, can cost?",
        ),
        Mistake(("no pair",), "Two numbers are asked for: (latency_s, per_byte_s)."),
    ),
    "16.step_time": (
        Mistake(("computing alone",), "When is the last gradient ready, and how long does sending it take after that?"),
        Mistake(("backward may end later",), "Two things end before the next step begins. Which one is last?"),
        Mistake(("without overlap", "at the end, together"), "What can the network carry while backward goes on?"),
        Mistake(
            ("nothing to send before", "no gradient is ready"),
            "Which layer's gradient is ready first, and when? Until then the network is idle.",
        ),
        Mistake(("two messages cannot",), "Keep one clock for the network: when is it free again?"),
        Mistake(("sends nothing",), "What does reduce_s(0) cost? Does a layer without gradients call it?"),
        Mistake(("has 4 bytes",), "values counts numbers, reduce_s takes bytes."),
        Mistake(("backward begins with",), "In which order does backward go through the layers?"),
    ),
    "16.lower_bound": (
        Mistake(
            ("not layer", "not only those of layer i"),
            "Which gradients must have arrived before the forward of layer i?",
        ),
        Mistake(
            ("computing alone", "the network alone", "not the largest"),
            "Between which two moments must the bytes of layers 0 to i be sent? What runs before and after?",
        ),
        Mistake(
            ("no bound", "rules out"),
            "A bound must hold for the best schedule, too. Which overlap does your bound rule out?",
        ),
        Mistake(("asked for",), "Each i gives one bound, and all of them hold. Which one says the most?"),
        Mistake(
            ("belongs to the step as well",), "After their gradients have come, what do layers i to the last compute?"
        ),
    ),
    "16.schedule": (
        Mistake(("are in no message",), "end is one behind the last. Where does the last piece of a layer end?"),
        Mistake(
            ("are in two messages",), "Where one piece ends, the next one begins: end of one is begin of the next."
        ),
        Mistake(
            ("and a piece at least one",), "begin and end count gradients, not bytes; an empty layer has no piece."
        ),
        Mistake(("three whole numbers", "a list of"), "A list of messages, each a list of pieces (layer, begin, end)."),
        Mistake(
            ("A second call gives the same result",),
            "Each rank calls it for itself. Does anything in it depend on chance?",
        ),
        Mistake(
            ("of latencies",), "Each message costs reduce_s(0). How many layers are too small for their own message?"
        ),
        Mistake(
            ("What does the next forward need first?",),
            "Put the front layers first in your list, in their own messages.",
        ),
        Mistake(
            ("can be sent only between two messages",),
            "No message can overtake one that is being sent. Cut the large one into pieces.",
        ),
    ),
}

__all__ = ["MISTAKES"]

"""Of lessons 17 and 21."""

from __future__ import annotations

from workbench.course.judging.mistake import Mistake

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "17.table": (
        Mistake(
            ("A dict is asked for", "has no '"), "Four rows, one for each description, with the four questions as keys."
        ),
        Mistake(
            ("What starts the ranks",), "Which command does the container, or the script, run? Follow it to the ranks."
        ),
        Mistake(
            ("Who knows the hosts",),
            "A person or a program writes down the hosts' names, or turns a name into an address. Which one?",
        ),
        Mistake(
            ("Where the number of ranks",),
            "Look for the number itself in the description. Which program reads that line?",
        ),
        Mistake(
            ("Who replaces a lost rank",), "Which process is still there when a rank is gone, and may start another?"
        ),
    ),
    "17.who_am_i": (
        Mistake(
            ("One launcher inside another",),
            "A process inherits the variables of the program that started its parent. Which launcher is the innermost "
            "one?",
        ),
        Mistake(
            ("'SLURM_STEP_NUM_TASKS'",),
            "Which of the three variables is there only if srun has started the process? Ask for that one.",
            "a batch script has SLURM_PROCID, too, although srun has not started it; SLURM_STEP_NUM_TASKS is not there",
        ),
        Mistake(
            ("by hand",),
            "Slurm sets variables for the whole job, also in a shell. Which of them are there in a step of srun alone?",
        ),
        Mistake(("('",), "os.environ holds text. The ranks must be numbers."),
        Mistake(("One launcher alone",), "Read the names again: which three does this launcher set?"),
    ),
    "17.discover": (
        Mistake(("with a slot for each GPU",), 'limits["nvidia.com/gpu"] is text, and may be missing. What then?'),
        Mistake(
            ("take no rank",),
            "A pod takes a rank if it is a worker, and ready, and not deleted. Which of them is asked?",
        ),
        Mistake(("By number",), "As text, “10” comes before “2”. Sort by the number at the end of the name."),
    ),
    "17.recovery": (
        Mistake(
            ("An elastic job of one rank",), "Its only rank is lost, and its commit with it. What is left on disk?"
        ),
        Mistake(
            ("processes started",), "Which ranks are still running after the failure? Only the others must be started."
        ),
        Mistake(("A job that is started again",), "All processes are gone, and with them the commits in their memory."),
        Mistake(
            ("An elastic job of several",), "The survivors have the last commit. Is the step that failed done again?"
        ),
    ),
    "21.order": (
        Mistake(("the second of the pair",), "“submitted” is a pair of times. Which of them counts?"),
        Mistake(
            ("max() arg is an empty sequence", "max() iterable argument is empty", "list index out of range"),
            "Which rank has the answers? And can a tensor be the second name of its collective?",
            "nothing was found of this tensor: answers stand with rank 0 alone, and a tensor may travel with others",
        ),
        Mistake(("rank by rank",), "Sort by time, over all ranks together."),
        Mistake(
            ("the answer belongs",), "The answer to this collective is the newest that is not later than “arrived”."
        ),
        Mistake(("the oldest collective",), "A tensor travels in every step. Which of its collectives is the newest?"),
        Mistake(("is missing",), "Which of the six events is in another list than the collectives?"),
        Mistake(("the latest stands first",), "In which direction does sorted() sort?"),
    ),
    "21.late": (
        Mistake(
            ("KeyError",),
            "Which indices do all ranks remember? Take the intersection of their sets.",
            "not every rank remembers this collective",
        ),
        Mistake(("in ns",), "How many ns are 1 µs?"),
        Mistake(("not by “announced”", "by “arrived”", "by “done”"), "Which of the times says when a rank was ready?"),
        Mistake(("place in the list",), "One rank may remember more collectives than another. Compare equal indices."),
        Mistake(
            ("announced first", "the last collective alone"), "The last rank makes the others wait. Which rank is it?"
        ),
        Mistake(("The last rank",), "Take one index, write down all ranks' announced, and compute the waits by hand."),
    ),
}

__all__ = ["MISTAKES"]

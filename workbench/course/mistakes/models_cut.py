"""Of lessons 18 and 20."""

from __future__ import annotations

from workbench.course.judging.mistake import Mistake

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "18.owners": (
        Mistake(("Every parameter is whole",), "One long array is cut, independent of where parameters end."),
        Mistake(("cut by itself",), "Write the parameters one after the other. Where does rank 1's chunk begin?"),
        Mistake(("the chunks have lengths",), "np.array_split gives what is left over to the first chunks, one each."),
        Mistake(("count from the parameter's own",), "What is the number of that element within its own parameter?"),
        Mistake(("Is the last element missing?",), "stop is one more than the last element's index, as in a slice."),
        Mistake(("is no part",), "A part says which parameter, and from where to where in it: three numbers."),
        Mistake(
            ("is empty",), "A chunk may end exactly where a parameter ends. Is there anything left of the next one?"
        ),
    ),
    "18.reduce_scatter_step": (
        Mistake(
            ("own values only",), "In lesson 03 rank r ended with chunk r + 1. What has to be sent one step earlier?"
        ),
        Mistake(("along the sum",), "The step goes along the mean of the ranks' gradients. How many ranks are there?"),
        Mistake(
            ("own gradient",), "What comes from the left neighbour is to be added to your own chunk, step by step."
        ),
        Mistake(("has replaced",), "Add the received chunk to your own, and keep the sum."),
        Mistake(("against the gradient",), "In which direction does the loss become smaller?"),
        Mistake(("bytes per rank",), "Which chunks does a rank need? It owns one of n, and need not have the others."),
    ),
    "18.gather_parameters": (
        Mistake(("layers held at once",), "Which layers' W are needed at the same time? Gather inside the loop."),
        Mistake(("rows of W were used",), "x has to be multiplied with the whole W. Who has the other rows?"),
        Mistake(("in the order in which they arrived",), "Where in W do the rows belong that came from rank 2?"),
        Mistake(("results were gathered",), "Each rank has an x of its own. What is the same for all, and is missing?"),
        Mistake(
            ("bytes from the busiest rank",),
            "Each rank's rows go once around the ring. Which rank sends more than (n - 1)/n of W?",
        ),
        Mistake(
            ("before the layer's W was there",),
            "comm.compute stands for using W. Which line brings the last rows of W? Call it after that.",
        ),
        Mistake(("comm.compute was",), "Each rank uses each layer once, and calls comm.compute once for it."),
        Mistake(
            ("ready-made",), "You are building the ring. Which messages does it consist of: to whom, and from whom?"
        ),
    ),
    "20.row_split": (
        Mistake(("own part of the sum",), "x @ w has the right shape, but it is one rank's part. What is missing?"),
        Mistake(
            ("the bias was added", "the bias is missing"), "How often is b in the sum of all ranks? It belongs once."
        ),
        Mistake(("the ranks' mean",), "A product of matrices is a sum over the inner index. Is it divided by n?"),
        Mistake(("every rank is to return it",), "Which verb gives the sum to all ranks, and not to the root alone?"),
        Mistake(
            ("could not be broadcast", "has shape"),
            "Cut by rows, all ranks have all outputs, but only a part of each. Put them side by side, or add them up?",
            "the ranks' outputs were put side by side: each has all outputs, as a part of the sum",
        ),
        Mistake(
            ("bytes from the busiest rank",),
            "What must be sent is as long as the output. What larger array does your function send?",
        ),
    ),
    "20.two_layers": (
        Mistake(
            ("y is each rank's",), "The second layer is cut by rows. What is y of one rank, compared with all of y?"
        ),
        Mistake(
            ("dx is each rank's",), "Every hidden unit sends something back to x. Whose hidden units has this rank?"
        ),
        Mistake(("n times too large",), "Every rank got the same dy. What becomes of it in an allreduce?"),
        Mistake(("dw1 and dw2",), "Does another rank have these rows and columns of the weights, too?"),
        Mistake(("the ranks' mean",), "Parts of a sum are added up. By what would you divide, and why?"),
        Mistake(("is 0 where h is",), "Which hidden units did max(…, 0) switch off? Nothing goes back through them."),
        Mistake(
            ("bytes from the busiest rank",), "Two sums are needed: y in forward, dx in backward. What else travels?"
        ),
    ),
    "20.one_f_one_b": (
        Mistake(
            ("as in GPipe", "are enough"),
            "How many forwards may stage s be ahead before its first backward? Every further one is kept in memory.",
        ),
        Mistake(("the stages are idle",), "Draw two stages and three micro-batches. Which stage waits, and for what?"),
        Mistake(
            ("deadlock",), "Stage s can begin a backward when the stage behind has done that one. How far ahead is it?"
        ),
        Mistake(
            ("there is no micro-batch", "is missing"), "There may be fewer micro-batches than stages, even one alone."
        ),
        Mistake(("comes twice", "is missing"), "Count: each stage has m forwards and m backwards in its list."),
    ),
    "20.pipeline": (
        Mistake(
            ("in another order than",),
            "All stages must go through the micro-batches in one order. Which order does your function use?",
        ),
        Mistake(("go through tanh",), "h = tanh(z): what is dz, when dh is known?"),
        Mistake(
            ("each stage has another w",), "Whose gradient is averaged in data parallelism, and are these w equal?"
        ),
        Mistake(("micro-batches' mean",), "The text asks for the sum over the micro-batches."),
        Mistake(("no deadlock",), "For each recv in backward: which stage sends it its gradient, and in which line?"),
        Mistake(
            ("'NoneType' object",),
            "Only the first stage has xs, and only the last one ts. What do the others have, and which rank do they "
            "receive from?",
            "xs is None on all stages but the first, and ts on all but the last",
        ),
        Mistake(
            ("bytes from the busiest rank",),
            "A stage sends to its two neighbours only. What do you send to the others?",
        ),
    ),
}

__all__ = ["MISTAKES"]

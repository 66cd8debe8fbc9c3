"""Known wrong versions of what lessons 18 to 20 cut: owners, factors, layers and pipelines."""

from __future__ import annotations

from workbench.course.judging.slips import Slip

_AHEAD = "ahead = min(stages - stage - 1, microbatches)"
_LOOP = "    for i, (x, h) in enumerate(kept):"
_ERROR = "sent - p @ mine.T"

SLIPS: dict[str, tuple[Slip, ...]] = {
    "18.owners": (
        Slip(
            "start and stop count in the long array: they count from the parameter's own first element",
            "What is the number of that element within its own parameter?",
            "(number, first - start, last - start)",
            "(number, first, last)",
        ),
        Slip(
            "stop is the last element: it is the one behind it, as in a slice",
            "stop is one more than the last element's index.",
            "last - start))",
            "last - start - 1))",
        ),
        Slip(
            "the third number is a length, and not where the part stops",
            "(2, 5, 9) means elements 5 to 8: is 9 a length?",
            "(number, first - start, last - start)",
            "(number, first - start, last - first)",
        ),
        Slip(
            "the elements that are left over are lost: the first ranks get one more each",
            "np.array_split gives what is left over to the first chunks, one each.",
            " + (rank < total % n)",
            "",
        ),
        Slip(
            "the last ranks have the longer chunks: the first ones get one more",
            "np.array_split gives what is left over to the first chunks, one each.",
            "rank < total % n",
            "rank >= n - total % n",
        ),
        Slip(
            "the last rank gets all that is left over: the first ranks get one more each",
            "np.array_split gives what is left over to the first chunks, one each.",
            "(rank < total % n)",
            "(total % n if rank == n - 1 else 0)",
        ),
        Slip(
            "every chunk is rounded up, so the last one is too short: the first total % n get one more",
            "np.array_split gives what is left over to the first chunks, one each.",
            "lengths = [total // n + (rank < total % n) for rank in range(n)]",
            "lengths = [min(-(-total // n), max(0, total - rank * -(-total // n))) for rank in range(n)]",
        ),
        Slip(
            "empty parts are among them: leave them out",
            "A chunk may end exactly where a parameter ends. Is there anything left of the next one?",
            "if first < last:",
            "if first <= last:",
        ),
        Slip(
            "whole parameters are dealt out in turns: the long array is cut, also in the middle of a parameter",
            "One long array is cut, independent of where parameters end.",
            "    return found",
            "    return [[(k, 0, size) for k, size in enumerate(sizes) if k % n == rank] for rank in range(n)]",
        ),
        Slip(
            "each parameter was cut by itself: put them one after the other, and cut that array",
            "Write the parameters one after the other. Where does rank 1's chunk begin?",
            "    return found",
            "    cut = lambda size, rank: sum(size // n + (k < size % n) for k in range(rank))\n    return [\n"
            "        [(k, cut(size, rank), cut(size, rank + 1)) for k, size in enumerate(sizes) if cut(size, rank) < "
            "cut(size, rank + 1)]\n        for rank in range(n)\n    ]",
        ),
        Slip(
            "each rank has only its first part: a chunk may reach over several parameters",
            "How many parameters can there be between low and high?",
            "found.append(parts)",
            "found.append(parts[:1])",
        ),
        Slip(
            "ranks and parts are one list: each rank has a list of its own",
            "A list with an entry for each rank is asked for.",
            "found.append(parts)",
            "found.extend(parts)",
        ),
    ),
    "19.powersgd": (
        Slip(
            "what was left out before is never sent: add the error to the gradient",
            "The part that was left out last time must be sent now: where do you add it?",
            "gradient + error",
            "gradient",
        ),
        Slip(
            "the error is taken off: it is added",
            "The part that was left out last time must be sent now: where do you add it?",
            "gradient + error",
            "gradient - error",
        ),
        Slip(
            "p was added up: divide by comm.size (the direction is the same, but not its length)",
            "Two averages: by what is each sum divided?",
            "np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]",
            "comm.allreduce(sent @ q)",
        ),
        Slip(
            "p is not orthonormal: np.linalg.qr(p)[0] makes it so",
            "p @ p.T projects only if p's columns are orthonormal.",
            "np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]",
            "comm.allreduce(sent @ q) / comm.size",
        ),
        Slip(
            "each rank has a p of its own: average sent @ q before it is made orthonormal",
            "All ranks need one p. Which comes first, the average or qr?",
            "np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]",
            "np.linalg.qr(sent @ q)[0]",
        ),
        Slip(
            "p was made orthonormal before it was averaged: average first",
            "All ranks need one p. Which comes first, the average or qr?",
            "np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]",
            "comm.allreduce(np.linalg.qr(sent @ q)[0]) / comm.size",
        ),
        Slip(
            "the second factor was added up: divide by comm.size",
            "Two averages: which matrix is sent in the second one, and is it divided by n?",
            "comm.allreduce(mine) / comm.size",
            "comm.allreduce(mine)",
        ),
        Slip(
            "the second factor was not averaged: each rank returns its own gradient",
            "Two averages: which matrix is sent in the second one, and is it divided by n?",
            "comm.allreduce(mine) / comm.size",
            "mine",
        ),
        Slip(
            "the error is measured from the averaged gradient: this rank's own part outside of p is asked for",
            "The error is what p cannot express of what this rank sends: p @ p.T @ that, and not the average.",
            _ERROR,
            "sent - p @ q.T",
        ),
        Slip(
            "the new error is measured from the gradient: take gradient + error, because that is what is sent",
            "The error is the matrix that this rank wanted to send, minus the part that p can express.",
            _ERROR,
            "gradient - p @ mine.T",
        ),
        Slip(
            "the new error has the wrong sign: what was to be sent, minus what p can express",
            "The error is the matrix that this rank wanted to send, minus the part that p can express.",
            _ERROR,
            "p @ mine.T - sent",
        ),
        Slip(
            "the new error is lost: return what p cannot express",
            "The error is the matrix that this rank wanted to send, minus the part that p can express.",
            _ERROR,
            "0 * sent",
        ),
        Slip(
            "the errors are added up over the rounds: the new one has the old one in it already",
            "sent has the old error in it. Is it to be added once more?",
            _ERROR,
            "error + sent - p @ mine.T",
        ),
        Slip(
            "nothing was compressed: the whole matrices were averaged",
            "Which two small matrices stand for the large one?",
            "p @ q.T, sent",
            "comm.allreduce(sent) / comm.size, sent",
        ),
    ),
    "20.row_split": (
        Slip(
            "each rank has its own part of the sum only: the parts must be added up",
            "x @ w has the right shape, but it is one rank's part. What is missing?",
            "comm.allreduce(x @ w) + b",
            "x @ w + b",
        ),
        Slip(
            "the bias was added on each rank, and summed: it belongs once",
            "How often is b in the sum of all ranks? It belongs once.",
            "comm.allreduce(x @ w) + b",
            "comm.allreduce(x @ w + b)",
        ),
        Slip(
            "the bias is missing",
            "How often is b in the sum of all ranks? It belongs once.",
            "comm.allreduce(x @ w) + b",
            "comm.allreduce(x @ w)",
        ),
        Slip(
            "that is the ranks' mean: parts of a product are added up, and not averaged",
            "A product of matrices is a sum over the inner index. Is it divided by n?",
            "comm.allreduce(x @ w) + b",
            "comm.allreduce(x @ w) / comm.size + b",
        ),
        Slip(
            "rank 0 alone has the sum: every rank is to return it",
            "Which verb gives the sum to all ranks, and not to the root alone?",
            "return comm.allreduce(x @ w) + b",
            "total = comm.reduce(x @ w)\n    return None if total is None else total + b",
        ),
        Slip(
            "the bias was added on rank 0 only, after the sum: all ranks are to have it",
            "Which ranks return x @ w + b?",
            "comm.allreduce(x @ w) + b",
            "comm.allreduce(x @ w) + (b if comm.rank == 0 else 0)",
        ),
        Slip(
            "the ranks' outputs were put side by side: each has all outputs, as a part of the sum",
            "Cut by rows, all ranks have all outputs, but only a part of each. Put them side by side, or add them up?",
            "comm.allreduce(x @ w) + b",
            "np.concatenate(comm.allgather(x @ w), axis=1) + np.concatenate([b] * comm.size)",
        ),
        Slip(
            "the ranks' outputs were put below each other: each has all outputs, as a part of the sum",
            "Cut by rows, all ranks have all outputs, but only a part of each. Put them below each other, or add them?",
            "comm.allreduce(x @ w) + b",
            "np.concatenate(comm.allgather(x @ w)) + b",
        ),
        Slip(
            "the bias was taken off, and not added",
            "The output is x @ w + b.",
            "comm.allreduce(x @ w) + b",
            "comm.allreduce(x @ w) - b",
        ),
        Slip(
            "each rank added an n-th of the bias, before the sum, and then the whole bias once more",
            "How often is b in the sum of all ranks? It belongs once.",
            "comm.allreduce(x @ w) + b",
            "comm.allreduce(x @ w + b / comm.size) + b",
        ),
    ),
    "20.two_layers": (
        Slip(
            "y is each rank's own part of the sum only",
            "The second layer is cut by rows. What is y of one rank, compared with all of y?",
            "y = comm.allreduce(h @ w2)",
            "y = h @ w2",
        ),
        Slip(
            "dx is each rank's own part only",
            "Every hidden unit sends something back to x. Whose hidden units has this rank?",
            "dx = comm.allreduce(dh @ w1.T)",
            "dx = dh @ w1.T",
        ),
        Slip(
            "neither y nor dx was summed",
            "Two sums are needed: y in forward, dx in backward.",
            "y = comm.allreduce(h @ w2)",
            "y = h @ w2",
            "dx = comm.allreduce(dh @ w1.T)",
            "dx = dh @ w1.T",
        ),
        Slip(
            "all gradients are n times too large: each rank has all of dy already, so dy is not to be summed",
            "Every rank got the same dy. What becomes of it in an allreduce?",
            "    h = np.maximum",
            "    dy = comm.allreduce(dy)\n    h = np.maximum",
        ),
        Slip(
            "y and dx are the ranks' means, and their parts are to be added up: do not divide by n",
            "Parts of a sum are added up. By what would you divide, and why?",
            "comm.allreduce(h @ w2)",
            "comm.allreduce(h @ w2) / comm.size",
            "comm.allreduce(dh @ w1.T)",
            "comm.allreduce(dh @ w1.T) / comm.size",
        ),
        Slip(
            "y is the ranks' mean, and their parts are to be added up: do not divide by n",
            "Parts of a sum are added up. By what would you divide, and why?",
            "comm.allreduce(h @ w2)",
            "comm.allreduce(h @ w2) / comm.size",
        ),
        Slip(
            "dx is the ranks' mean, and their parts are to be added up: do not divide by n",
            "Parts of a sum are added up. By what would you divide, and why?",
            "comm.allreduce(dh @ w1.T)",
            "comm.allreduce(dh @ w1.T) / comm.size",
        ),
        Slip(
            "dw1 and dw2 were divided by n: each rank has other rows and columns, so there is nothing to average",
            "Does another rank have these rows and columns of the weights, too?",
            "x.T @ dh, h.T @ dy",
            "x.T @ dh / comm.size, h.T @ dy / comm.size",
        ),
        Slip(
            "dh goes through max(…, 0) in backward: it is 0 where h is",
            "Which hidden units did max(…, 0) switch off? Nothing goes back through them.",
            "(dy @ w2.T) * (h > 0)",
            "dy @ w2.T",
        ),
        Slip(
            "max(…, 0) is missing in forward",
            "Which function stands between the two layers?",
            "np.maximum(x @ w1, 0)",
            "x @ w1",
            "(dy @ w2.T) * (h > 0)",
            "dy @ w2.T",
        ),
        Slip(
            "backward multiplies by h, and not by the slope of max(…, 0), which is 1 where h is above 0",
            "What is the derivative of max(z, 0) by z?",
            "* (h > 0)",
            "* h",
        ),
        Slip(
            "dw1 and dw2 are the wrong way round: return y, dx, dw1, dw2",
            "In which order does the text name the four results?",
            "x.T @ dh, h.T @ dy",
            "h.T @ dy, x.T @ dh",
        ),
        Slip(
            "dx and y are the wrong way round: return y, dx, dw1, dw2",
            "In which order does the text name the four results?",
            "return y, dx",
            "return dx, y",
        ),
        Slip(
            "dw2 is the gradient by the sum's input without max(…, 0): it is h.T @ dy",
            "What goes into the second layer: x @ w1, or h?",
            "h.T @ dy",
            "(x @ w1).T @ dy",
        ),
        Slip(
            "max(…, 0) comes after the sum: it belongs between the two layers",
            "Each hidden unit goes through max(…, 0). Is y one?",
            "y = comm.allreduce(h @ w2)",
            "y = np.maximum(comm.allreduce((x @ w1) @ w2), 0)",
        ),
        Slip(
            "dw1 was summed over the ranks: each rank has other columns of w1, so there is nothing to add up",
            "Does another rank have these columns of w1, too?",
            "x.T @ dh, h.T @ dy",
            "comm.allreduce(x.T @ dh), h.T @ dy",
        ),
    ),
    "20.one_f_one_b": (
        Slip(
            "all forwards come first, as in GPipe: after as many as there are later stages, a backward follows each",
            "How many forwards may stage s be ahead before its first backward? Every further one is kept in memory.",
            _AHEAD,
            "ahead = microbatches",
        ),
        Slip(
            "each stage is one forward too far ahead: stages after this one are stages - stage - 1",
            "How many stages come after the last one? So many forwards does it do first.",
            _AHEAD,
            "ahead = min(stages - stage, microbatches)",
        ),
        Slip(
            "each stage is one forward short: stages after this one are stages - stage - 1",
            "How many stages come after this one? So many forwards does it do first.",
            _AHEAD,
            "ahead = min(max(0, stages - stage - 2), microbatches)",
        ),
        Slip(
            "the stages are counted from the wrong end: the first stage does the most forwards ahead",
            "Which stage waits longest for its first backward: the first or the last one?",
            _AHEAD,
            "ahead = min(stage, microbatches)",
        ),
        Slip(
            "no stage works ahead: a backward follows each forward at once",
            "Can the first stage do the backward of micro-batch 0 right after its forward? Who must be done before?",
            _AHEAD,
            "ahead = 0",
        ),
        Slip(
            "all stages work equally far ahead: stage s does as many forwards first as there are stages after it",
            "How many stages come after the last one? So many forwards does it do first.",
            _AHEAD,
            "ahead = min(stages - 1, microbatches)",
        ),
        Slip(
            "there may be fewer micro-batches than stages: no more forwards ahead than there are",
            "There may be fewer micro-batches than stages, even one alone.",
            _AHEAD,
            "ahead = stages - stage - 1",
        ),
        Slip(
            "the backwards go from the last micro-batch to the first: number 0 first",
            "Whose gradient is there first: that of the first micro-batch, or of the last?",
            '[("B", i) for i in range(microbatches - ahead, microbatches)]',
            '[("B", i) for i in reversed(range(microbatches - ahead, microbatches))]',
        ),
        Slip(
            "the backwards that are left are missing at the end",
            "Count: each stage has m forwards and m backwards in its list.",
            '    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]',
            "    return ops",
        ),
        Slip(
            "one backward comes before one forward: first the forward, then the backward",
            "What does the last stage do first?",
            '[("F", ahead + i), ("B", i)]',
            '[("B", i), ("F", ahead + i)]',
        ),
        Slip(
            'the letter and the number are the wrong way round: ("F", i)',
            "Look at the form in the text: which stands first?",
            '    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]',
            '    ops += [("B", i) for i in range(microbatches - ahead, microbatches)]\n'
            "    return [(i, what) for what, i in ops]",
        ),
        Slip(
            "micro-batches are counted from 1: the first one is number 0",
            "Which number has the first micro-batch?",
            '    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]',
            '    ops += [("B", i) for i in range(microbatches - ahead, microbatches)]\n'
            "    return [(what, i + 1) for what, i in ops]",
        ),
        Slip(
            'the letters and numbers are one text: each operation is a pair, ("F", 0)',
            'Look at the form in the text: ("F", i) is a pair.',
            '    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]',
            '    ops += [("B", i) for i in range(microbatches - ahead, microbatches)]\n'
            "    return [what + str(i) for what, i in ops]",
        ),
        Slip(
            "the first forwards ahead are missing: as many as there are stages after this one",
            "Count: each stage has m forwards and m backwards in its list.",
            'ops = [("F", i) for i in range(ahead)]',
            "ops = []",
        ),
    ),
    "20.pipeline": (
        Slip(
            "that is the micro-batches' mean, and their sum is asked for",
            "The text asks for the sum over the micro-batches.",
            "    return total",
            "    return total / count",
        ),
        Slip(
            "the stages' gradients were averaged: each stage has another w, keep its own",
            "Whose gradient is averaged in data parallelism, and are these w equal?",
            "    return total",
            "    return comm.allreduce(total) / comm.size",
        ),
        Slip(
            "the stages' gradients were added up: each stage has another w, keep its own",
            "Whose gradient is averaged in data parallelism, and are these w equal?",
            "    return total",
            "    return comm.allreduce(total)",
        ),
        Slip(
            "backward has to go through tanh as well: dz = dh * (1 - h ** 2)",
            "h = tanh(z): what is dz, when dh is known?",
            "dz = dh * (1 - h**2)",
            "dz = dh",
        ),
        Slip(
            "the slope of tanh is 1 - h ** 2, with h the output, and not the input",
            "h = tanh(z): what is dz, when dh is known? Which of x and h is in it?",
            "dz = dh * (1 - h**2)",
            "dz = dh * (1 - (x @ w) ** 2)",
        ),
        Slip(
            "the slope of tanh is 1 - h ** 2, and not 1 - h",
            "h = tanh(z): what is dz, when dh is known?",
            "(1 - h**2)",
            "(1 - h)",
        ),
        Slip(
            "the gradients have the wrong sign: dh is h - ts[i]",
            "The loss is (h - t)² / 2. What is its derivative by h?",
            "h - ts[i] if",
            "ts[i] - h if",
        ),
        Slip(
            "the gradients are twice too large: the half in the loss takes the 2 of the derivative away",
            "The loss is (h - t)² / 2. What is its derivative by h?",
            "h - ts[i] if",
            "2 * (h - ts[i]) if",
        ),
        Slip(
            "that is the last micro-batch alone, and the sum of all is asked for",
            "Which line adds up? It must not begin anew for each micro-batch.",
            "total = total + x.T @ dz",
            "total = x.T @ dz",
        ),
        Slip(
            "the last stage goes through the micro-batches in another order than the stages before it",
            "All stages must go through the micro-batches in one order. Which order does your function use?",
            _LOOP,
            "    for i, (x, h) in list(enumerate(kept))[:: -1 if last else 1]:",
        ),
        Slip(
            "backward uses the last micro-batch's x and h for all: keep those of each",
            "Whose x and h belong to the gradient that comes? Keep a list.",
            _LOOP,
            "    x, h = kept[-1]\n    for i in range(count):",
        ),
        Slip(
            "what goes back is dz, and not dz @ w.T: the stage before needs the gradient by its h",
            "The x of this stage is the h of the one before. What is the gradient by x?",
            "comm.send(dz @ w.T, dest",
            "comm.send(dz, dest",
        ),
        Slip(
            "what goes back is dh @ w.T: it has to go through tanh first, dz @ w.T",
            "The x of this stage is the h of the one before. What is the gradient by x?",
            "comm.send(dz @ w.T, dest",
            "comm.send(dh @ w.T, dest",
        ),
        Slip(
            "the stages send x @ w, without tanh",
            "h = np.tanh(x @ w) is the x of the next stage.",
            "comm.send(kept[i][1], dest",
            "comm.send(kept[i][0] @ w, dest",
        ),
        Slip(
            "that is the gradient by w of h.T, and not of x.T: the layer's input counts",
            "w's gradient is x.T @ dz. Which of the two is x?",
            "x.T @ dz",
            "h.T @ dz",
        ),
    ),
}

__all__ = ["SLIPS"]

"""Known wrong versions of lesson 23: memory of a layout, the choice of one, a step on a grid of ranks."""

from __future__ import annotations

from workbench.course.judging.slips import Slip, slips

_FITS = "if samples // data % microbatches or not fits(*layout):"
_FASTER = "if best is None or seconds(*layout) < seconds(*best):"

SLIPS: dict[str, tuple[Slip, ...]] = {
    "23.bytes_per_gpu": (
        Slip(
            "Adam's state was not divided among the data ranks: ZeRO 1 does that",
            "12 of the 16 bytes belong to the optimizer. How many data ranks share them?",
            "12 / data",
            "12",
        ),
        Slip(
            "parameters and gradients were divided among the data ranks, too: ZeRO 1 divides Adam's state only",
            "Which of ZeRO's stages divides gradients, and which parameters?",
            "(4 + 12 / data)",
            "16 / data",
        ),
        Slip(
            "activations of all micro-batches are kept: 1F1B keeps at most `pipeline` of them",
            "When has the first stage done the backward of its first micro-batch?",
            "min(pipeline, microbatches)",
            "microbatches",
        ),
        Slip(
            "activations of one micro-batch only are kept: a stage keeps several at a time",
            "How many forwards does the first stage do before its first backward?",
            " * min(pipeline, microbatches)",
            "",
        ),
        Slip(
            "`pipeline` micro-batches are kept even where there are fewer",
            "Can a stage keep 4 micro-batches if there are 2?",
            "min(pipeline, microbatches)",
            "pipeline",
        ),
        Slip(
            "activations were not divided by tensor and pipeline: a GPU has a part of the layers, and of each layer",
            "Which layers does a stage compute, and which part of each a tensor rank?",
            "activations / (tensor * pipeline)",
            "activations",
        ),
        Slip(
            "activations were not divided by tensor: each rank of the group has a part of the hidden units",
            "Whose hidden units does a tensor rank keep?",
            "activations / (tensor * pipeline)",
            "activations / pipeline",
        ),
        Slip(
            "activations were divided by data: they are those of one micro-batch, which one data rank computes",
            "activations are given for one micro-batch. Who computes it?",
            "activations / (tensor * pipeline)",
            "activations / (tensor * pipeline * data)",
        ),
        Slip(
            "the parameters were not divided by pipeline: a stage has its own layers only",
            "How many layers has a stage?",
            "mine = parameters / (tensor * pipeline)",
            "mine = parameters / tensor",
        ),
        Slip(
            "the parameters were not divided by tensor: a tensor rank has some columns or rows only",
            "Which part of a matrix has a tensor rank?",
            "mine = parameters / (tensor * pipeline)",
            "mine = parameters / pipeline",
        ),
        Slip(
            "the gradients' 2 bytes are missing",
            "Parameter 2 bytes, gradient 2 bytes: how many does a data rank keep whole?",
            "(4 + 12 / data)",
            "(2 + 12 / data)",
        ),
    ),
    "23.choose": (
        Slip(
            "fits() was not asked: the fastest layout of all does not fit into a GPU",
            "Which layouts may be compared at all?",
            _FITS,
            "if samples // data % microbatches:",
        ),
        Slip(
            "that is the first layout that fits, and not the fastest",
            "Which number tells two layouts that fit from each other?",
            _FASTER,
            "if best is None:",
        ),
        Slip(
            "that is the slowest layout that fits",
            "Is a longer step a better one?",
            "seconds(*layout) < seconds(*best)",
            "seconds(*layout) > seconds(*best)",
        ),
        Slip(
            "pipelines were not tried: pipeline = 1 only",
            "What if the model does not fit into one host?",
            "range(1, layers + 1)",
            "range(1, 2)",
        ),
        Slip(
            "tensor groups were not tried: tensor = 1 only",
            "Which of the three cuts makes activations smaller, and has no bubble?",
            "range(1, gpus_per_host + 1)",
            "range(1, 2)",
        ),
        Slip(
            "tensor is always a whole host: smaller groups were not tried",
            "What does a tensor group send in each layer? Does it become less with more ranks?",
            "range(1, gpus_per_host + 1)",
            "range(gpus_per_host, gpus_per_host + 1)",
        ),
        Slip(
            "micro-batches of one sample only were tried: fewer and larger ones pay fewer latencies",
            "Each micro-batch pays the latencies of the tensor groups. How many are really needed?",
            "range(1, samples // data + 1)",
            "range(samples // data, samples // data + 1)",
        ),
        Slip(
            "one micro-batch only was tried: several make the bubble smaller, and the activations too",
            "(p - 1)/m of the computing is idle. What can you do about it?",
            "range(1, samples // data + 1)",
            "range(1, 2)",
        ),
        Slip(
            "data = 1 only was tried: data ranks have no bubble, and send little on a fast network",
            "Whose bubble is zero?",
            "or samples % data:",
            "or samples % data or data > 1:",
        ),
        Slip(
            "that is the layout with the most data ranks that fits, and not the fastest",
            "On a slow network, what do the data groups send?",
            _FASTER,
            "if best is None or (-layout[0], seconds(*layout)) < (-best[0], seconds(*best)):",
        ),
        Slip(
            "that is the time beside the layout: return the layout alone",
            "What is asked for: four numbers, or five?",
            "    return best",
            "    return best if best is None else (*best, seconds(*best))",
        ),
    ),
    "23.grid_step": (
        Slip(
            "the outputs were not summed in the tensor group: each rank has a part of the sum only",
            "h @ w2 has the right shape already. What is it, with some of the rows of w2?",
            "ring_among(comm, my_tensor_group, (h @ w2).ravel()).reshape(y.shape)",
            "h @ w2",
        ),
        *slips(
            "the outputs were summed in another group: the ranks with the same samples have parts of the same output",
            "Write down for 2 × 2: which ranks have the same x, and what does each have of h @ w2?",
            "my_tensor_group, (h",
            "my_data_group, (h",
            "list(range(comm.size)), (h",
        ),
        Slip(
            "the two groups were taken for each other: outputs are summed among the ranks with the same samples",
            "Write down for 2 × 2: which ranks have the same x? What does each have of h @ w2?",
            "my_tensor_group, (h",
            "my_data_group, (h",
            "my_data_group, mine) / len(my_data_group)",
            "my_tensor_group, mine) / tensor",
        ),
        Slip(
            "the outputs were averaged in the tensor group: each rank has other terms of one sum",
            "h @ w2 is a sum over the columns of h. Which of its terms has a rank?",
            "reshape(y.shape)",
            "reshape(y.shape) / tensor",
        ),
        Slip(
            "y was divided by the number of tensor ranks: y is whole, and so is the output once it is summed",
            "What is output - y, after the sum?",
            "(output - y)",
            "(output - y / tensor)",
        ),
        *slips(
            "the gradients were averaged in another group: only ranks with the same columns have the same weights",
            "Whose gradients may be added to yours? Those of the same numbers of w1 and w2.",
            "ring_among(comm, my_data_group, mine) / len(my_data_group)",
            "ring_among(comm, list(range(comm.size)), mine) / comm.size",
            "ring_among(comm, list(range(comm.size)), mine) / len(my_data_group)",
            "ring_among(comm, my_tensor_group, mine) / tensor",
        ),
        Slip(
            "the gradients were divided by the number of tensor ranks, not by that of data ranks",
            "How many ranks have a gradient of the same columns?",
            "/ len(my_data_group)",
            "/ tensor",
        ),
        Slip(
            "the gradients were not averaged in the data group: each data rank makes a step of its own",
            "Which ranks have the same columns of w1? Their weights have to stay equal.",
            "ring_among(comm, my_data_group, mine) / len(my_data_group)",
            "mine",
        ),
        Slip(
            "the gradients were summed in the data group: divide by the number of data ranks",
            "Each data rank has the mean over its own samples. What is the mean over all?",
            " / len(my_data_group)",
            "",
        ),
        Slip(
            "the gradients were divided by the number of all ranks: tensor ranks have nothing to average",
            "How many ranks have a gradient of the same columns?",
            "/ len(my_data_group)",
            "/ comm.size",
        ),
        Slip(
            "rank r was taken for tensor_rank · data + data_rank: tensor ranks have neighbouring numbers",
            "2 × 2: which two ranks have the first samples?",
            "data_rank, tensor_rank = divmod(comm.rank, tensor)",
            "tensor_rank, data_rank = divmod(comm.rank, comm.size // tensor)",
        ),
        Slip(
            "dh does not know max(…, 0): it is 0 where h is",
            "What is the derivative of max(z, 0) where z is negative?",
            " * (h > 0)",
            "",
        ),
        Slip(
            "the error was not divided by the number of samples: the loss is a mean",
            "The loss is a mean over the samples. What is its derivative by one output?",
            "(output - y) / len(x)",
            "output - y",
        ),
        Slip(
            "the error was divided by all samples, and then averaged: divide by this rank's samples only",
            "A mean of means: over which samples is the first one?",
            "/ len(x)",
            "/ (len(x) * (comm.size // tensor))",
        ),
        Slip(
            "max(…, 0) is missing in the forward pass",
            "What does the text do with x @ w1, before w2?",
            "np.maximum(x @ w1, 0)",
            "x @ w1",
        ),
        Slip(
            "the step is twice as long: the loss has a 1/2, so the error has no factor of 2",
            "What is the derivative of e²/2?",
            "(output - y) / len(x)",
            "2 * (output - y) / len(x)",
        ),
        Slip(
            "the error was divided by all its numbers: the loss is a mean over the samples alone",
            "A sample's loss is |…|², a sum over the outputs. How many samples are there?",
            "(output - y) / len(x)",
            "(output - y) / y.size",
        ),
        Slip(
            "the gradients were subtracted as they are, without lr",
            "How long is a step?",
            "w1 - lr * d1, w2 - lr * d2",
            "w1 - d1, w2 - d2",
        ),
        Slip(
            "those are the gradients: the weights after the step are asked for",
            "What is subtracted from the weights?",
            "w1 - lr * d1, w2 - lr * d2",
            "d1, d2",
        ),
        Slip(
            "the new w1 was used for dh before the step was over",
            "Both gradients belong to the weights before the step.",
            "error @ w2.T",
            "error @ (w2 - lr * h.T @ error).T",
        ),
    ),
}

"""The answers that stand in for a learner where there is none: when notebooks are built or tested.

Each is plausible and most are wrong, because a reader of the finished notebook should see that guesses are often wrong.
There is one entry for each ``predict`` in the lessons; their names are also the list of what ``progress()`` knows.
"""

from __future__ import annotations

from workbench.course.predictions.question import Answer

GIVEN: dict[str, Answer] = {
    # 00 Quickstart
    "00.accuracy": "about 50 %",
    "00.same": "0: the same bits",
    # 01 Ranks in your notebook
    "01.kernel": "0, 1, 2 and 3",
    "01.alone": "the cell hangs, and only a restart of the kernel ends it",
    "01.order": "both averages are right: names are matched",
    # 02 Collectives by hand
    "02.rounds": 16,
    "02.allgather": "everybody to everybody",
    "02.hang": "always",
    # 03 Ring allreduce
    "03.bytes": "2,400 kB",
    "03.growth": 4,
    "03.small": "as long",
    # 04 Parallel SGD
    "04.uneven": "less than 1e-12: rounding",
    "04.ring": 16,
    "04.staleness": 1,
    "04.race": "asynchronous, lr 0.3",
    # 05 Sharding the data
    "05.seeds": 0,
    "05.forgotten": 24,
    "05.join": "1",
    # 06 The distributed optimizer
    "06.hooks": ["layer 0", "layer 2", "layer 4"],
    "06.state": "yes: the same weights and the same gradients",
    "06.overlap": "there is no limit",
    # 07 Tensor fusion
    "07.packed": 4,
    "07.threshold": "the largest: all in one message",
    "07.announced": "5,800 bytes, as in the first",
    # 08 Is it faster?
    "08.stopwatch": ["from_the_beginning", "own_work", "whole_steps"],
    "08.tiny": "nearly twice as fast as on one",
    "08.best": 512,
    # 09 Large batches
    "09.rate": 1,
    "09.warmup": "above 1: the rate is too large for this batch",
    "09.control": "higher: the rule says 0.4",
    # 10 Convert a script
    "10.copies": "an error: init() was not called",
    "10.seventh": 1,
    "10.forgotten": "the same accuracy: the weights were broadcast",
    # 11 Find the bug
    "11.named": "rank 2: the mistake is there",
    "11.apart": "one model: the average brings them together",
    # 12 GPUs and nodes
    "12.pinned": "GPU 0 of b",
    "12.slowest": "twice as long",
    "12.turns": 1,
    # 13 Capstone
    "13.batch": "all the same: they send the same bytes",
    "13.result": "0: the same bits",
    # 14 Every framework
    "14.same": "about 1e-3: each has its own arithmetic",
    "14.jobs": 4,
    # 15 A rank dies
    "15.mtbf": 50,
    "15.interval": 180,
    "15.bits": "those of one and of four: 4 is a power of two",
    # 16 512 GPUs on paper
    "16.bandwidth": 90,
    "16.layer": 20,
    "16.front": "… in halves",
    # 17 The same job on every engine
    "17.bits": "different: the transports add in another order",
    "17.pod": "that pod's",
    # 18 Sharding further
    "18.holds": "8 GB",
    "18.bytes": "twice as much",
    "18.stage3": 2.0,
    "18.measured": "1.5 P",
    # 19 Talking less
    "19.by_class": "about the same",
    "19.factors": 1050,
    "19.memory": "about twice the loss",
    "19.pays": "half of the time",
    # 20 Cutting the model
    "20.two_layers": "2",
    "20.derivative": "right",
    "20.bubble": 12.5,
    "20.smaller": "smaller than GPipe's",
    # 21 Follow one gradient
    "21.late": "nothing: they disagree about the order",
    "21.thread": "the engine's thread",
    "21.order": [
        "rank 0's hook is called",
        "rank 1's hook is called",
        "rank 0 has heard of it from all ranks",
        "the ranks' gradients are added up",
        "rank 0's backward has ended, and step() waits",
    ],
    "21.skipped": "the announcement: nobody is told any more",
    "22.places": "MPI_size = 2; MPI_rank = 0 and 1; MPI_local_rank = 0 and 1",
    "22.first": "in the first epoch the weights are far from good ones",
    "22.steps": "5,628 and 5,628",
    "22.memory": 1,
}

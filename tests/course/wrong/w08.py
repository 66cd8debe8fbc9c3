"""Wrong solutions of lesson 08, each with what the check must say."""

from __future__ import annotations

import math
from statistics import median

from wrong_answers import Answers

wrong = Answers()


@wrong("08.ring_time", "n times the right number: each of the 2(n - 1) steps sends an n-th of the array")
def whole_array_in_each_step(n, nbytes, alpha_s, beta_s): return 2 * (n - 1) * (alpha_s + beta_s * nbytes)
@wrong(
    "08.ring_time", "✗ One rank has nobody to wait for: the latency is paid once: each of the 2(n - 1) steps pays it"
)
def latency_once(n, nbytes, alpha_s, beta_s): return alpha_s + 2 * (n - 1) / n * nbytes * beta_s
@wrong(
    "08.ring_time", "latency is left: the ring goes around twice: n - 1 steps to add up, and n - 1 to pass on the sums"
)
def only_the_reduce_scatter(n, nbytes, alpha_s, beta_s): return (n - 1) * (alpha_s + beta_s * nbytes / n)
@wrong(
    "08.ring_time",
    "sends 2(n - 1)/n of the bytes: an n-th of the bytes was rounded down: it need not be a whole number",
)
def whole_bytes_only(n, nbytes, alpha_s, beta_s): return 2 * (n - 1) * (alpha_s + beta_s * (nbytes // n))
@wrong("08.ring_time", "1,000 times the right number: seconds are asked for, not milliseconds")
def in_milliseconds(n, nbytes, alpha_s, beta_s): return 2e3 * (n - 1) * (alpha_s + beta_s * nbytes / n)
@wrong("08.speedup", "the efficiency is a fraction, 1 where the speed-up is n, and no percentage")
def in_per_cent(alone, together):
    middle = median(max(one) / max(many) for one, many in zip(alone, together, strict=True))
    return middle, 100 * middle / len(together[0])
@wrong("08.speedup", "the speed-up comes first, then the efficiency")
def efficiency_first(alone, together):
    middle = median(max(one) / max(many) for one, many in zip(alone, together, strict=True))
    return middle / len(together[0]), middle
@wrong("08.speedup", "your result is 1.5, expected (1.5, 0.75). Two numbers are asked for")
def speed_up_alone(alone, together):
    return median(max(one) / max(many) for one, many in zip(alone, together, strict=True))
@wrong("08.speedup", "that is rank 0's time; a round lasts until the slowest")
def of_rank_0(alone, together):
    middle = median(one[0] / many[0] for one, many in zip(alone, together, strict=True))
    return middle, middle / len(together[0])
@wrong("08.speedup", "the ratio is inverted")
def upside_down(alone, together):
    middle = median(max(many) / max(one) for one, many in zip(alone, together, strict=True))
    return middle, middle / len(together[0])
@wrong("08.break_even", "That is (n - 1)/n of the right number: that is C(n) alone")
def communication_alone(n, nbytes, alpha_s, beta_s): return 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
@wrong("08.break_even", "That is n - 1 times the right number: that is n C(n)")
def n_times_it(n, nbytes, alpha_s, beta_s): return n * 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
@wrong("08.break_even", "the latencies are left out")
def without_latency(n, nbytes, alpha_s, beta_s): return 2 * beta_s * nbytes
@wrong("08.break_even", "your result is None")
def forgets_to_return(n, nbytes, alpha_s, beta_s): 2 * (n * alpha_s + beta_s * nbytes)
@wrong("08.ring_time", "latency is left: the latency was divided by n, too: each step pays all of alpha_s")
def latency_by_n(n, nbytes, alpha_s, beta_s): return 2 * (n - 1) * (alpha_s + beta_s * nbytes) / n
@wrong("08.ring_time", "that is a tree, which sends the whole array log2(n) times there and back")
def time_of_a_tree(n, nbytes, alpha_s, beta_s): return 2 * math.ceil(math.log2(n)) * (alpha_s + beta_s * nbytes)
@wrong("08.ring_time", "beta_s is the seconds that a byte takes: multiply the bytes by it")
def beta_as_bytes_per_second(n, nbytes, alpha_s, beta_s): return 2 * (n - 1) * (alpha_s + nbytes / (n * beta_s))

"""Wrong solutions of lesson 07, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

from workbench.course.tasks.t07_fusion import finish_time, plan_buckets

wrong = Answers()


@wrong(
    "07.plan_buckets", "in the old order, and no bucket is empty: the last bucket is missing: add it when the loop ends"
)
def forgets_the_last_bucket(sizes, threshold):
    buckets, bucket = [], []
    for size in sizes:
        if bucket and sum(bucket) + size > threshold:
            buckets.append(bucket)
            bucket = []
        bucket.append(size)
    return buckets
@wrong("07.plan_buckets", "with an empty bucket")
def opens_with_an_empty_bucket(sizes, threshold):
    buckets: list[list[int]] = [[]]
    for size in sizes:
        if sum(buckets[-1]) + size > threshold: buckets.append([])
        buckets[-1].append(size)
    return buckets
@wrong("07.plan_buckets", "sizes [1, 1], threshold 1: your result has the bucket [1, 1], together 2")
def fills_until_it_is_over(sizes, threshold):
    buckets: list[list[int]] = []
    for size in sizes:
        if buckets and sum(buckets[-1]) <= threshold: buckets[-1].append(size)
        else: buckets.append([size])
    return buckets
@wrong("07.plan_buckets", "sizes [1, 1], threshold 2: your result has 2 buckets, [[1], [1]], expected 1")
def below_the_threshold_only(sizes, threshold):
    buckets: list[list[int]] = []
    for size in sizes:
        if buckets and sum(buckets[-1]) + size < threshold: buckets[-1].append(size)
        else: buckets.append([size])
    return buckets
@wrong(
    "07.plan_buckets", "and no bucket is empty: the smallest tensors come first: keep the order in which they are given"
)
def sorts_them(sizes, threshold): return plan_buckets(sorted(sizes), threshold)
@wrong("07.plan_buckets", "sizes [1, 1], threshold 2: your result has 2 buckets")
def never_packs(sizes, threshold): return [[size] for size in sizes]
@wrong(
    "07.plan_buckets",
    "tensor was cut in pieces, or several became one number: a bucket lists whole tensors, by their sizes",
)
def splits_large_tensors(sizes, threshold):
    buckets: list[list[int]] = []
    for size in sizes:
        while size > threshold > 0:
            buckets.append([threshold])
            size -= threshold
        buckets.append([size])
    return buckets
@wrong("07.plan_buckets", "changes the list of sizes")
def takes_from_the_list(sizes, threshold):
    buckets: list[list[int]] = []
    while sizes:
        bucket = [sizes.pop(0)]
        while sizes and sum(bucket) + sizes[0] <= threshold: bucket.append(sizes.pop(0))
        buckets.append(bucket)
    return buckets
@wrong("07.plan_buckets", "your result has the bucket")
def counts_tensors_instead_of_sizes(sizes, threshold):
    step = max(1, threshold)
    return [sizes[i : i + step] for i in range(0, len(sizes), step)]
@wrong(
    "07.best_threshold",
    "at once: one message for all is best: sizes [5], ready [0.0], α = 4.0, β = 1.0: your result is [",
)
def returns_the_plan(sizes, ready, alpha, beta): return [list(sizes)]
@wrong("07.best_threshold", "with your threshold")
def everything_at_once(sizes, ready, alpha, beta): return sum(sizes)
@wrong("07.best_threshold", "✗ All tensors ready at once")
def everything_alone(sizes, ready, alpha, beta): return 0
@wrong("07.best_threshold", "✗ All tensors ready at once")
def half_of_all(sizes, ready, alpha, beta): return sum(sizes) / 2
@wrong("07.best_threshold", "✗ All tensors ready at once")
def latency_equals_transfer(sizes, ready, alpha, beta): return alpha / beta
@wrong("07.best_threshold", "✗ As early as with the best of all thresholds")
def only_sizes_of_single_tensors(sizes, ready, alpha, beta):
    tried = [0, *sizes, sum(sizes)]
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
@wrong("07.best_threshold", "✗ As early as with the best of all thresholds")
def only_powers_of_two(sizes, ready, alpha, beta):
    tried = [2**i for i in range(10)]
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
@wrong("07.best_threshold", "✗ As early as with the best of all thresholds")
def only_sums_from_the_first_on(sizes, ready, alpha, beta):
    tried = [0, *(sum(sizes[:i]) for i in range(1, len(sizes) + 1))]
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
@wrong("07.best_threshold", "✗ Without latency")
def fewest_messages(sizes, ready, alpha, beta):
    return min(range(sum(sizes) + 1), key=lambda one: len(plan_buckets(sizes, one)))
@wrong("07.best_threshold", "✗ As early as with the best of all thresholds")
def ready_does_not_matter(sizes, ready, alpha, beta):
    zeros = [0.0] * len(sizes)
    return min(range(sum(sizes) + 1), key=lambda one: finish_time(plan_buckets(sizes, one), zeros, alpha, beta))
@wrong("07.best_threshold", "✗ All tensors ready at once")
def returns_the_time(sizes, ready, alpha, beta):
    return min(finish_time(plan_buckets(sizes, one), ready, alpha, beta) for one in range(sum(sizes) + 1))
@wrong("07.best_threshold", "✗ All tensors ready at once")
def stops_below_the_sum(sizes, ready, alpha, beta):
    return min(range(sum(sizes)), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
@wrong("07.best_threshold", "Do you try only some of the thresholds?")
def tries_a_hundred(sizes, ready, alpha, beta):
    tried = np.linspace(0, sum(sizes), 100)
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))

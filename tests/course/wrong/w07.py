"""Wrong solutions of lesson 07, each with what the check must say."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.course.tasks.t07_fusion import finish_time, plan_buckets


def forgets_the_last_bucket(sizes: Any, threshold: Any) -> Any:
    buckets, bucket = [], []
    for size in sizes:
        if bucket and sum(bucket) + size > threshold:
            buckets.append(bucket)
            bucket = []
        bucket.append(size)
    return buckets


def opens_with_an_empty_bucket(sizes: Any, threshold: Any) -> Any:
    buckets: list[list[int]] = [[]]
    for size in sizes:
        if sum(buckets[-1]) + size > threshold:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def fills_until_it_is_over(sizes: Any, threshold: Any) -> Any:
    buckets: list[list[int]] = []
    for size in sizes:
        if buckets and sum(buckets[-1]) <= threshold:
            buckets[-1].append(size)
        else:
            buckets.append([size])
    return buckets


def below_the_threshold_only(sizes: Any, threshold: Any) -> Any:
    buckets: list[list[int]] = []
    for size in sizes:
        if buckets and sum(buckets[-1]) + size < threshold:
            buckets[-1].append(size)
        else:
            buckets.append([size])
    return buckets


def sorts_them(sizes: Any, threshold: Any) -> Any:
    return plan_buckets(sorted(sizes), threshold)


def never_packs(sizes: Any, threshold: Any) -> Any:
    return [[size] for size in sizes]


def splits_large_tensors(sizes: Any, threshold: Any) -> Any:
    buckets: list[list[int]] = []
    for size in sizes:
        while size > threshold > 0:
            buckets.append([threshold])
            size -= threshold
        buckets.append([size])
    return buckets


def takes_from_the_list(sizes: Any, threshold: Any) -> Any:
    buckets: list[list[int]] = []
    while sizes:
        bucket = [sizes.pop(0)]
        while sizes and sum(bucket) + sizes[0] <= threshold:
            bucket.append(sizes.pop(0))
        buckets.append(bucket)
    return buckets


def counts_tensors_instead_of_sizes(sizes: Any, threshold: Any) -> Any:
    step = max(1, threshold)
    return [sizes[i : i + step] for i in range(0, len(sizes), step)]


def returns_the_plan(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return [list(sizes)]


def everything_at_once(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return sum(sizes)


def everything_alone(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return 0


def half_of_all(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return sum(sizes) / 2


def latency_equals_transfer(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return alpha / beta


def only_sizes_of_single_tensors(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    tried = [0, *sizes, sum(sizes)]
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))


def only_powers_of_two(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    tried = [2**i for i in range(10)]
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))


def only_sums_from_the_first_on(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    tried = [0, *(sum(sizes[:i]) for i in range(1, len(sizes) + 1))]
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))


def fewest_messages(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return min(range(sum(sizes) + 1), key=lambda one: len(plan_buckets(sizes, one)))


def ready_does_not_matter(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    zeros = [0.0] * len(sizes)
    return min(range(sum(sizes) + 1), key=lambda one: finish_time(plan_buckets(sizes, one), zeros, alpha, beta))


def returns_the_time(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return min(finish_time(plan_buckets(sizes, one), ready, alpha, beta) for one in range(sum(sizes) + 1))


def stops_below_the_sum(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    return min(range(sum(sizes)), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))


def tries_a_hundred(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    tried = np.linspace(0, sum(sizes), 100)
    return min(tried, key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))


WRONG = {
    "07.plan_buckets": [
        (
            forgets_the_last_bucket,
            "in the old order, and no bucket is empty: the last bucket is missing: add it when the loop ends",
        ),
        (opens_with_an_empty_bucket, "with an empty bucket"),
        (fills_until_it_is_over, "sizes [1, 1], threshold 1: your result has the bucket [1, 1], together 2"),
        (below_the_threshold_only, "sizes [1, 1], threshold 2: your result has 2 buckets, [[1], [1]], expected 1"),
        (
            sorts_them,
            "and no bucket is empty: the smallest tensors come first: keep the order in which they are given",
        ),
        (never_packs, "sizes [1, 1], threshold 2: your result has 2 buckets"),
        (
            splits_large_tensors,
            "tensor was cut in pieces, or several became one number: a bucket lists whole tensors, by their sizes",
        ),
        (takes_from_the_list, "changes the list of sizes"),
        (counts_tensors_instead_of_sizes, "your result has the bucket"),
    ],
    "07.best_threshold": [
        (
            returns_the_plan,
            "at once: one message for all is best: sizes [5], ready [0.0], α = 4.0, β = 1.0: your result is [",
        ),
        (everything_at_once, "with your threshold"),
        (everything_alone, "✗ All tensors ready at once"),
        (half_of_all, "✗ All tensors ready at once"),
        (latency_equals_transfer, "✗ All tensors ready at once"),
        (only_sizes_of_single_tensors, "✗ As early as with the best of all thresholds"),
        (only_powers_of_two, "✗ As early as with the best of all thresholds"),
        (only_sums_from_the_first_on, "✗ As early as with the best of all thresholds"),
        (fewest_messages, "✗ Without latency"),
        (ready_does_not_matter, "✗ As early as with the best of all thresholds"),
        (returns_the_time, "✗ All tensors ready at once"),
        (stops_below_the_sum, "✗ All tensors ready at once"),
        (tries_a_hundred, "Do you try only some of the thresholds?"),
    ],
}

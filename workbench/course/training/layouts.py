"""What a step of a transformer takes, by its layout on a cluster: the figures behind lesson 23.

The model, with d · t · p GPUs, m micro-batches, L layers of width h, S samples of s tokens in a global batch. A
micro-batch's x between two layers has X = 2 h s S/(d m) bytes::

    parameters   12 L h²                                         of all layers
    computing    (72 h + 16 s) h L s S / (GPUs · FLOP/s)         6 · parameters a token; scores, forward twice
    bubble       computing · (p - 1) / m                         1F1B, as in lesson 20
    tensor       4 L/p allreduces of X bytes, m times, over t    two forward, two backward, per layer
    pipeline     2 (m + p - 2) messages of X bytes               forward and back; t GPUs send a part each, of 1/t
    data         2 (d - 1)/d · 2 · parameters/(t p) bytes        over d; reduce-scatter, allgather: ZeRO 1
    activations  34 s h bytes of a sample and layer              Korthikanti et al. 2022, arXiv:2205.05198

Tensor groups use sequence parallelism. An allreduce is then a reduce-scatter and an allgather around the operations
between the cut matrices, with equal bytes, and each GPU keeps 1/t of all activations. Without it, t divides 24 of the
34 bytes only. Attention's scores would be 5 · heads · s² bytes more; they are computed again in backward, and not kept.

Ranks of a tensor group have neighbouring numbers, then come the stages, and last the data ranks. So tensor groups are
inside a host. Stages are, if t · p divides the GPUs of a host; else the slowest messages go from host to host, where
the t GPUs of a stage share the network. It carries the gradients of all GPUs of a host at once.

Nothing is hidden behind computing, so real steps are shorter. Left out, so real steps are longer: the optimizer's own
time, embeddings, the last layer and the loss (they make the first and the last stage slower), reading the data, ranks
that are late, memory that is fragmented.
"""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True)
class Cluster:
    """Hosts with GPUs.

    Args:
        hosts: their number.
        gpus_per_host: of each.
        memory_bytes: of a GPU.
        flops: what a GPU reaches, per second.
        inside_s, between_s: seconds that a byte takes between two GPUs of a host, and between two hosts.
        latency_s: of a message, anywhere.
    """

    hosts: int
    gpus_per_host: int = 8
    memory_bytes: float = 80 * _GIB
    flops: float = 4e14
    inside_s: float = 1 / 300e9
    between_s: float = 1 / 25e9
    latency_s: float = 10e-6

    @property
    def gpus(self) -> int:
        return self.hosts * self.gpus_per_host


@dataclass(frozen=True)
class Transformer:
    """What is trained.

    Args:
        layers: their number.
        width: of each, h.
        tokens: of a sample.
        samples: of a global batch.
    """

    layers: int
    width: int
    tokens: int = 2048
    samples: int = 512

    @property
    def parameters(self) -> int:
        """Of all layers.

        Example:
            >>> Transformer(96, 12288).parameters  # as many layers as GPT-3, of its width
            173946175488
        """
        return 12 * self.layers * self.width**2

    def activations(self, samples: float) -> float:
        """Bytes that all layers keep of some samples between forward and backward."""
        return 34.0 * self.layers * self.tokens * self.width * samples


NAMES = ("computing", "the bubble", "the tensor groups' sums", "the pipelines' messages", "the data groups' sums")
Parts = tuple[float, float, float, float, float]


def parts(model: Transformer, cluster: Cluster, layout: tuple[int, int, int, int]) -> Parts:
    """Seconds of a step, in the order of :data:`NAMES`.

    Args:
        model: what is trained.
        cluster: where.
        layout: (data, tensor, pipeline, microbatches).

    Example:
        >>> one = parts(Transformer(24, 2048), Cluster(hosts=1), (2, 2, 2, 4))
        >>> [round(seconds, 3) for seconds in one]
        [2.903, 0.726, 0.347, 0.007, 0.002]
    """
    data, tensor, pipeline, microbatches = layout
    tokens = model.tokens * model.samples
    operations = (72 * model.width + 16 * model.tokens) * model.width * model.layers * tokens
    computing = operations / (cluster.gpus * cluster.flops)
    activation = 2 * model.width * tokens / (data * microbatches)
    sums = 4 * model.layers / pipeline * microbatches
    in_tensor = sums * _allreduce(tensor, activation, cluster.inside_s, cluster.latency_s)
    neighbours = cluster.gpus_per_host % (tensor * pipeline) == 0
    to_next_s = activation * (cluster.inside_s / tensor if neighbours else cluster.between_s)
    messages = 2 * (microbatches + pipeline - 2) if pipeline > 1 else 0
    in_pipeline = messages * (cluster.latency_s + to_next_s)
    gradients = 2 * model.parameters / (tensor * pipeline)
    is_inside = cluster.hosts == 1
    shared = cluster.inside_s if is_inside else cluster.between_s * min(cluster.gpus_per_host, tensor * pipeline)
    in_data = _allreduce(data, gradients, shared, cluster.latency_s)
    return computing, computing * (pipeline - 1) / microbatches, in_tensor, in_pipeline, in_data


def seconds(model: Transformer, cluster: Cluster, layout: tuple[int, int, int, int]) -> float:
    """A step's time: the sum of its parts."""
    return sum(parts(model, cluster, layout))


def _allreduce(ranks: int, nbytes: float, per_byte_s: float, latency_s: float) -> float:
    return 2 * (ranks - 1) * (latency_s + per_byte_s * nbytes / ranks)

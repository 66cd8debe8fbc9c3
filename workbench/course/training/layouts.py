"""What a step of a transformer takes, by its layout on a cluster: the figures behind lesson 23.

The model, with d · t · p GPUs, m micro-batches, L layers of width h, S samples of s tokens in a global batch::

    parameters   12 L h²                                                     of all layers; without embeddings
    computing    6 · parameters · tokens / (GPUs · FLOP/s)                   forward 2, backward 4
    bubble       computing · (p - 1) / m                                     1F1B, as in lesson 20
    tensor       4 L/p allreduces of 2 h s S/(d m) bytes, m times, over t    two forward, two backward, per layer
    data         2 (d - 1)/d · 2 · parameters/(t p) bytes, over d            reduce-scatter, allgather: ZeRO 1
    activations  34 s h bytes of a sample and layer                          Korthikanti et al. 2022, arXiv:2205.05198

Nothing is hidden behind computing, and a stage's activations that go to the next stage cost nothing. Ranks of a tensor
group have neighbouring numbers, then come the stages, and last the data ranks: so tensor groups are inside a host, and
the network between hosts carries gradients, of all GPUs of a host at once.
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
        """All of them."""
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


Parts = tuple[float, float, float, float]


def parts(model: Transformer, cluster: Cluster, layout: tuple[int, int, int, int]) -> Parts:
    """Seconds of a step: computing, bubble, tensor groups' sums, data groups' sums.

    Args:
        model: what is trained.
        cluster: where.
        layout: (data, tensor, pipeline, microbatches).

    Example:
        >>> one = parts(Transformer(24, 2048), Cluster(hosts=1), (8, 1, 1, 1))
        >>> [round(seconds, 3) for seconds in one]
        [2.375, 0.0, 0.0, 0.014]
    """
    data, tensor, pipeline, microbatches = layout
    computing = 6 * model.parameters * model.tokens * model.samples / (cluster.gpus * cluster.flops)
    activation = 2 * model.width * model.tokens * model.samples / (data * microbatches)
    sums = 4 * model.layers / pipeline * microbatches
    in_tensor = sums * _allreduce(tensor, activation, cluster.inside_s, cluster.latency_s)
    gradients = 2 * model.parameters / (tensor * pipeline)
    is_inside = cluster.hosts == 1
    shared = cluster.inside_s if is_inside else cluster.between_s * min(cluster.gpus_per_host, tensor * pipeline)
    in_data = _allreduce(data, gradients, shared, cluster.latency_s)
    return computing, computing * (pipeline - 1) / microbatches, in_tensor, in_data


def seconds(model: Transformer, cluster: Cluster, layout: tuple[int, int, int, int]) -> float:
    """A step's time: the sum of its parts."""
    return sum(parts(model, cluster, layout))


def _allreduce(ranks: int, nbytes: float, per_byte_s: float, latency_s: float) -> float:
    return 2 * (ranks - 1) * (latency_s + per_byte_s * nbytes / ranks)

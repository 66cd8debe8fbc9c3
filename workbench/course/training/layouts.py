"""What a step of a transformer takes, and what a GPU keeps, by the layout of a job: the figures of lessons 23 and 28.

L layers of width h, P parameters in all; a global batch of S samples of s tokens. The ranks: data d × sharded f ×
tensor t × pipeline p × context c; m micro-batches, v stages on each rank of a pipeline. A micro-batch's x between two
layers has X = bytes · h s S/(d f c m)::

    computing   (6 P + 16 s h L) s S / (GPUs · FLOP/s)       scores: forward twice; + 2 P if layers are computed again
    bubble      computing · (p - 1)/(m v)                    1F1B, interleaved if v > 1: lessons 20 and 27
    tensor      4 L/p allreduces of X, m times, over t       two forward, two backward; 6 if computed again
    pipeline    2 (m v + p - 2) messages of X                forward and back; t GPUs send a part each, of 1/t
    data        an allreduce of P/(t p f) gradients          over d, or d c if f = 1
    sharded     3 (f - 1)/f of the bytes of P/(t p), m times  gathered twice, reduce-scattered; once if p > 1
    context     2 L/p gathers of keys and values, m times    forward, and their gradients; 3 if computed again

    states      P/(t p f) (weight + gradient + state / d)    bytes of each: ZeRO 1; and two gathered layers, if f > 1
    activations 34 s h bytes of a sample and layer           of min(p, m) micro-batches (arXiv:2205.05198); if p = 1
                                                             the logits: in numbers, as float32, and their gradient

Tensor groups use sequence parallelism. An allreduce is then a reduce-scatter and an allgather around the operations
between the cut matrices, with equal bytes, and each GPU keeps 1/t of all activations. Without it, t divides 24 of the
34 bytes only. Attention's scores would be 5 · heads · s² bytes more; they are computed again in backward, and not kept.

Ranks of a tensor group have neighbouring numbers, then come the context's, the stages, and last those with other
samples. So tensor groups are inside a host. Stages are, if t · c · p divides the GPUs of a host; else the slowest
messages go from host to host, where the t GPUs of a stage share the network. It carries the gradients of all GPUs of a
host at once.

By default nothing is hidden behind computing, so real steps are shorter; ``Cluster.overlap`` hides what data and
sharded ranks send. Left out, so real steps are longer: the optimizer's own time, stages that are not equally long,
reading the data, ranks that are late, memory that is fragmented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
        score_flops: of attention's scores, if they are computed at another rate; else 0.
        memory_s: seconds that a byte takes to or from a GPU's memory. What a layer keeps is moved three times; states
            are read and written once.
        layer_s: that a layer of a micro-batch takes at least, forward and backward: its kernels are launched.
        overlap: the part of the computing behind which data and sharded ranks send, 0 to 1.
    """

    hosts: int
    gpus_per_host: int = 8
    memory_bytes: float = 80 * _GIB
    flops: float = 4e14
    inside_s: float = 1 / 300e9
    between_s: float = 1 / 25e9
    latency_s: float = 10e-6
    score_flops: float = 0.0
    memory_s: float = 0.0
    layer_s: float = 0.0
    overlap: float = 0.0

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
        vocabulary: 0 leaves out the embedding and the last layer, which each have vocabulary · h parameters.
        tied: both are one.
        per_layer: parameters of a layer; 0 is 12 h².
        heads: of attention, for :func:`refuse`; 0 is not looked at.
        key_width: of keys, and of values, as a part of h: 1/4 with a fourth as many heads for them.
        number_bytes: of a number that is computed with, and sent.
        state: bytes of each parameter: its weight, gradient, and the rest of the optimizer's state.
        kept: bytes that a layer keeps between forward and backward, for a token and unit of width.
    """

    layers: int
    width: int
    tokens: int = 2048
    samples: int = 512
    vocabulary: int = 0
    tied: bool = False
    per_layer: int = 0
    heads: int = 0
    key_width: float = 1.0
    number_bytes: int = 2
    state: tuple[float, float, float] = (2, 2, 12)
    kept: float = 34.0

    @property
    def parameters(self) -> int:
        """Of all layers, and of both ends.

        Example:
            >>> Transformer(96, 12288).parameters  # as many layers as GPT-3, of its width
            173946175488
        """
        return self.layers * self.of_layer + (1 if self.tied else 2) * self.vocabulary * self.width

    @property
    def of_layer(self) -> int:
        """Parameters of a layer."""
        return self.per_layer or 12 * self.width**2

    def activations(self, samples: float) -> float:
        """Bytes that all layers keep of some samples between forward and backward."""
        return self.kept * self.layers * self.tokens * self.width * samples


class Layout(NamedTuple):
    """How many ranks each axis has; a plain tuple of the first four is one, too.

    Args:
        data: ranks with other samples, and all of a rank's parameters; with ``zero`` 1 they divide the optimizer's
            state.
        tensor, pipeline, context: ranks that divide each layer, the list of layers, each sample's tokens.
        microbatches: of each pipeline, or of an accumulation.
        sharded: ranks with other samples that divide weights, gradients and state (``fully_shard``), together with
            the context's; 0 if those of the context divide them alone.
        chunks: stages on each rank of a pipeline; interleaved if more than 1.
        recompute: what is computed again in backward: "nothing", "scores", or whole "layers".
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    microbatches: int = 1
    sharded: int = 1
    context: int = 1
    chunks: int = 1
    recompute: str = "scores"
    zero: int = 1

    @property
    def batches(self) -> int:
        """Ranks with other samples."""
        return self.data * max(1, self.sharded)

    @property
    def ranks(self) -> int:
        return self.batches * self.tensor * self.pipeline * self.context

    @property
    def shards(self) -> int:
        """Into how many parts a weight is divided, besides tensor and pipeline."""
        return 1 if self.sharded == 1 else max(1, self.sharded) * self.context


NAMES = (
    *("computing", "the bubble", "the tensor groups' sums", "the pipelines' messages", "the data groups' sums"),
    *("the shards' weights and gradients", "the contexts' keys and values"),
)
AnyLayout = Layout | tuple[int, int, int, int]


def parts(model: Transformer, cluster: Cluster, layout: AnyLayout) -> tuple[float, ...]:
    """Seconds of a step, in the order of :data:`NAMES`; of messages what is not hidden behind computing.

    Args:
        model: what is trained.
        cluster: where.
        layout: (data, tensor, pipeline, microbatches), or more.

    Example:
        >>> one = parts(Transformer(24, 2048), Cluster(hosts=1), (2, 2, 2, 4))
        >>> [round(seconds, 3) for seconds in one]
        [2.903, 0.726, 0.347, 0.007, 0.002, 0.0, 0.0]
    """
    cut = Layout(*layout)
    again, layers = cut.recompute == "layers", model.layers / cut.pipeline * cut.microbatches
    tokens = model.tokens * model.samples
    matrices = (8 if again else 6) * (model.layers * model.of_layer + model.vocabulary * model.width) / cluster.flops
    scores = (12 if cut.recompute == "nothing" else 16) * model.tokens * model.width * model.layers
    moved = (4 if again else 3) * model.activations(model.samples) / cut.ranks + 2 * memory(model, cut)[0]
    computing = tokens * (matrices + scores / (cluster.score_flops or cluster.flops)) / cut.ranks
    computing = max(computing + moved * cluster.memory_s, layers * cluster.layer_s)
    activation = model.number_bytes * model.width * tokens / (cut.batches * cut.context * cut.microbatches)
    mine = model.parameters / (cut.tensor * cut.pipeline)

    inner = cut.tensor * cut.context
    tensor = (6 if again else 4) * layers * 2 * _half(cluster, 1, cut.tensor, activation)
    keys = 2 * model.key_width * activation * cut.context / cut.tensor
    context = (3 if again else 2) * layers * _half(cluster, cut.tensor, cut.context, keys)
    is_inside = cluster.gpus_per_host % (inner * cut.pipeline) == 0
    next_s = activation * (cluster.inside_s / cut.tensor if is_inside else cluster.between_s)
    messages = 2 * (cut.microbatches * cut.chunks + cut.pipeline - 2) if cut.pipeline > 1 else 0
    inner *= cut.pipeline
    once = (2 * model.number_bytes + model.state[1]) * mine  # gathered twice, reduce-scattered
    times = 1 if cut.pipeline > 1 else cut.microbatches
    pieces = 3 * times * model.layers / cut.pipeline
    sharded = pieces * _half(cluster, inner // cut.context, cut.shards, times * once / pieces)
    others = cut.data * (cut.context if cut.shards == 1 else 1)
    data = 2 * _half(cluster, inner * max(1, cut.sharded), others, model.state[1] * mine / cut.shards)
    last = computing * 2 / 3 / cut.microbatches  # the backward pass after which gradients are complete
    return (
        computing,
        computing * (cut.pipeline - 1) / (cut.microbatches * cut.chunks),
        tensor,
        messages * (cluster.latency_s + next_s),
        _exposed(data, cluster.overlap * last, layers / cut.microbatches),
        _exposed(sharded, cluster.overlap * computing, 3 * layers),
        context,
    )


def seconds(model: Transformer, cluster: Cluster, layout: AnyLayout) -> float:
    """A step's time: the sum of its parts."""
    return sum(parts(model, cluster, layout))


def memory(model: Transformer, layout: AnyLayout) -> tuple[float, float]:
    """Bytes that the first GPU of a pipeline keeps at most: for states, and for activations.

    Example:
        >>> states, activations = memory(Transformer(24, 2048, samples=8), Layout(sharded=8))
        >>> f"{states / 1e9:.2f} and {activations / 1e9:.2f} GB"
        '2.62 and 3.42 GB'
    """
    cut = Layout(*layout)
    weight, gradient, state = model.state
    mine = model.parameters / (cut.tensor * cut.pipeline * cut.shards)
    states = mine * (weight + gradient + state / (cut.data if cut.zero else 1))
    if cut.shards > 1:
        states += 2 * model.number_bytes * model.of_layer / cut.tensor
    micro = model.samples / (cut.batches * cut.microbatches) / (cut.tensor * cut.context)
    whole = model.activations(micro) / cut.pipeline
    if cut.recompute == "layers":
        kept = whole * model.number_bytes / model.kept  # a layer's input
        inside = whole * cut.pipeline / model.layers
    else:
        kept, inside = whole, 0.0
    more = 1 + (cut.pipeline - 1) / (cut.pipeline * cut.chunks) if cut.chunks > 1 else 1
    logits = model.tokens * micro * model.vocabulary * (model.number_bytes + 8) if cut.pipeline == 1 else 0
    return states, kept * min(cut.pipeline, cut.microbatches) * more + inside + logits


def refuse(model: Transformer, cluster: Cluster, layout: AnyLayout) -> None:
    """Raise an error if a layout is not possible.

    Raises:
        ValueError: it is not; with the numbers, and the nearest one that is.

    Example:
        >>> refuse(Transformer(24, 2048, heads=16), Cluster(1, 6), Layout(tensor=6))
        Traceback (most recent call last):
        ValueError: tensor = 6 does not divide heads = 16. The nearest that does: 4 or 8
        >>> refuse(Transformer(24, 2048), Cluster(1), Layout(data=2, tensor=2))
        Traceback (most recent call last):
        ValueError: data × sharded × tensor × pipeline × context = 2 × 1 × 2 × 1 × 1 = 4 ranks, and there are 8
    """
    cut = Layout(*layout)
    if cut.ranks != cluster.gpus:
        axes = f"{cut.data} × {max(1, cut.sharded)} × {cut.tensor} × {cut.pipeline} × {cut.context}"
        names = "data × sharded × tensor × pipeline × context"
        raise ValueError(f"{names} = {axes} = {cut.ranks} ranks, and there are {cluster.gpus}")
    for name, part, what, whole in (
        ("tensor", cut.tensor, "heads", model.heads),
        ("tensor", cut.tensor, "width", model.width),
        ("tensor", cut.tensor, "gpus_per_host", cluster.gpus_per_host),
        ("pipeline × chunks", cut.pipeline * cut.chunks, "layers", model.layers),
        ("2 × context", 2 * cut.context if cut.context > 1 else 1, "tokens", model.tokens),
        ("data × sharded", cut.batches, "samples", model.samples),
        ("microbatches", cut.microbatches, "samples / data", model.samples // cut.batches),
    ):
        if whole % part:
            fits = [each for each in range(1, whole + 1) if not whole % each]
            below, above = max(each for each in fits if each < part), next((each for each in fits if each > part), 0)
            nearest = f"{below} or {above}" if above else f"{below}"
            raise ValueError(f"{name} = {part} does not divide {what} = {whole}. The nearest that does: {nearest}")


def _half(cluster: Cluster, stride: int, ranks: int, nbytes: float) -> float:
    """Half an allreduce, in a ring: a reduce-scatter or an allgather. ``stride``: from a rank to the next one."""
    if stride * ranks <= cluster.gpus_per_host:
        per_byte_s = cluster.inside_s
    else:  # as many rings as there are GPUs between two neighbours share a host's network
        per_byte_s = cluster.between_s * min(cluster.gpus_per_host, stride)
    return (ranks - 1) * (cluster.latency_s + per_byte_s * nbytes / ranks)


def _exposed(took_s: float, computing_s: float, pieces: float) -> float:
    """What is not hidden: the rest, and at least the first or last piece."""
    return max(took_s - computing_s, took_s / max(pieces, 1.0))

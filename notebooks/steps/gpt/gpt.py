"""A language model in one file: torch alone, trained on bytes of Shakespeare by as many ranks as there are.

Start it, in one of these ways::

    workbench run -np 2 python examples/gpt.py
    torchrun --nproc-per-node 2 examples/gpt.py --backend gloo        # over torch's own

or in a ``%%px`` cell of a notebook in this folder: ``import gpt; gpt.main(steps=100)``.

In a minute on two cores the loss falls from 5.6 to 1.7, and the last lines look like a play. Each rank has an equal
part of every batch, so the losses are those of one process, whatever the number of ranks.

Where each idea comes from: the shape is GPT-2's (Radford et al., 2019) with what models have in its place since:
rotary positions (Su et al., 2021), RMSNorm before each part (Zhang and Sennrich, 2019), no biases.
"""

import argparse
import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 256  # a token is a byte


@dataclass(frozen=True)
class Shape:
    """What a model is like.

    Attributes:
        layers: blocks, one behind the other.
        width: numbers of a token's vector.
        heads: of the attention; they share the width.
        tokens: in a text, at most.
        vocabulary: different tokens.
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    tokens: int = 128
    vocabulary: int = VOCABULARY

    def __post_init__(self):
        pairs = 2 * self.heads  # each head has an even part, for its numbers turn in pairs
        if self.width % pairs:
            raise ValueError(
                f"{self.heads} heads cannot share a width of {self.width}: take a multiple of {pairs}, such as "
                f"{max(1, round(self.width / pairs)) * pairs}."
            )


class Attention(nn.Module):
    """Each token looks at itself and at those before it."""

    def __init__(self, shape):
        super().__init__()
        self.size = shape.width // shape.heads
        self.query, self.key, self.value, self.out = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(4))

    def forward(self, x, turns):
        """x: (n, tokens, width) to the same; turns: of :func:`rotations`."""
        # How many heads there are follows from what the layers return: a rank of a tensor-parallel group has a part.
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(turned(query, turns), turned(key, turns), value, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """Two layers, four times as wide between them; each token for itself."""

    def __init__(self, shape):
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then the two layers, each on what is normalized, and added to what came in."""

    def __init__(self, shape):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention, self.mlp = Attention(shape), Mlp(shape)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Tokens to scores of the token that comes next.

    Args:
        shape: see :class:`Shape`.
    """

    def __init__(self, shape=Shape()):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.embedding.weight  # tied: one matrix says what a token is, coming in and going out
        self.register_buffer("turns", rotations(shape), persistent=False)
        for name, param in self.named_parameters():
            if param.dim() > 1:  # what is added to the shortcut begins small: 2 * layers such parts add up
                into = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(param, std=0.02 / math.sqrt(2 * shape.layers) if into else 0.02)

    def forward(self, tokens):
        """tokens: (n, tokens) of whole numbers to (n, tokens, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.turns[: tokens.shape[1]])
        return self.head(self.norm(x))


def rotations(shape):
    """By how much each place turns each pair of numbers: (tokens, size of a head / 2), complex numbers of length 1."""
    size = shape.width // shape.heads
    speeds = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(shape.tokens), speeds)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def turned(x, turns):
    """Queries or keys, (n, heads, tokens, size), turned by their places: so their product knows the distance alone."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turns.to(x.dtype).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def loss_of(model, texts):
    """Mean over all tokens but the first: how surprised the model is, in nats (natural logarithm).

    Args:
        model: tokens to scores.
        texts: (n, tokens + 1).
    """
    scores = model(texts[:, :-1])
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # bf16 has too few digits for a sum of exp()
    return F.cross_entropy(scores.flatten(0, 1), texts[:, 1:].flatten())


def batch(text, step, size, tokens, seed=0):
    """The texts of a step, for all ranks together: (size, tokens + 1), from places drawn by seed and step."""
    places = torch.randint(
        len(text) - tokens, (size,), generator=torch.Generator().manual_seed(1_000_003 * seed + step)
    )
    return torch.stack([text[place : place + tokens + 1] for place in places]).long()


def learning_rate(step, steps, most=2e-3, warmup=20):
    """Up in a line, down as a cosine."""
    if step < warmup:
        return most * (step + 1) / warmup
    return most * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def optimizer_of(model):
    """AdamW, whose decay is for matrices alone."""
    matrices = [param for param in model.parameters() if param.dim() > 1]
    vectors = [param for param in model.parameters() if param.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


@torch.no_grad()
def write(model, begin, tokens, seed=0):
    """Go on with a text, a token after the other.

    Args:
        model: a :class:`GPT`.
        begin: bytes.
        tokens: how many more.
        seed: of the draws.
    """
    dice, found = torch.Generator().manual_seed(seed), torch.tensor([list(begin)])
    for _ in range(tokens):
        scores = model(found[:, -model.shape.tokens :])[:, -1].float()
        found = torch.cat((found, torch.multinomial(F.softmax(scores / 0.8, dim=-1), 1, generator=dice)), dim=1)
    return bytes(found[0].tolist()).decode(errors="replace")


def main(steps=500, size=16, shape=Shape(), backend="workbench", text=None):
    """All of it; see the file's beginning. Returns the losses, the mean over all ranks."""
    if text is None:
        from workbench import data  # here, for the model alone needs torch and nothing else

        text = data.shakespeare()
    dist.init_process_group(backend)
    rank, n = dist.get_rank(), dist.get_world_size()
    if size % n:
        raise ValueError(f"{n} ranks cannot share a batch of {size} texts. Take {size // n * n or n}.")
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    model = GPT(shape)
    trained, optimizer, losses = DistributedDataParallel(model), optimizer_of(model), []
    begun = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        mine = batch(text, step, size, shape.tokens).chunk(n)[rank]
        optimizer.zero_grad()
        loss = loss_of(trained, mine)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if step % 20 == 19 or step == steps - 1:
            mean = torch.stack(losses[-20:]).mean()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                tokens = (step + 1) * size * shape.tokens / (time.perf_counter() - begun)
                print(f"step {step + 1:4}: loss {mean:.3f}, {tokens:6,.0f} tokens/s", flush=True)
    losses = torch.stack(losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    dist.destroy_process_group()
    if rank == 0:
        print(write(model, b"ROMEO:\n", 300))
    return losses.tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--size", type=int, default=16, help="texts in a batch, for all ranks together")
    parser.add_argument("--backend", default="workbench")
    main(**vars(parser.parse_args()))

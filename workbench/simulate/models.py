"""The models of the published scaling figures: each layer's parameters and work, from the architectures.

A convolution with a kernel of h × w, from ``a`` to ``b`` channels, with an output of y × x places, has h·w·a·b weights,
and does 2·h·w·a·b·y·x floating point operations for a sample forward. Normalisation adds two parameters a channel.

=============  ===========  ==========  =========================================================
model          parameters   input       source
=============  ===========  ==========  =========================================================
VGG-16         138,357,544  224 × 224   Simonyan and Zisserman 2014, configuration D
ResNet-101      44,549,160  224 × 224   He et al. 2015; 1 × 1 with stride 1 in front, as in torchvision
Inception V3    23,834,568  299 × 299   Szegedy et al. 2015, without the auxiliary classifier
=============  ===========  ==========  =========================================================
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One layer with parameters.

    Args:
        name: of the layer.
        parameters: how many numbers its gradients have.
        flops: floating point operations of one sample, forward; backward takes twice as many.
        rows: of its weights as a matrix: the channels, or features, that it puts out.
    """

    name: str
    parameters: int
    flops: float
    rows: int = 1


Layers = tuple[Layer, ...]
"""A model, in forward order; their gradients come in the opposite one."""


def convolution(
    name: str, channels: tuple[int, int], kernel: tuple[int, int], places: int, normalised: bool = True
) -> Layer:
    """A convolution.

    Args:
        name: of the layer.
        channels: into it and out of it.
        kernel: height and width.
        places: its output's height and width, which are equal.
        normalised: followed by batch normalisation, and without a bias.

    Example:
        >>> convolution("first", (3, 64), (3, 3), 224, normalised=False)
        Layer(name='first', parameters=1792, flops=173408256, rows=64)
    """
    weights = kernel[0] * kernel[1] * channels[0] * channels[1]
    return Layer(name, weights + channels[1] * (2 if normalised else 1), 2 * weights * places**2, channels[1])


def dense(name: str, into: int, out: int) -> Layer:
    """A fully connected layer with a bias."""
    return Layer(name, into * out + out, 2 * into * out, out)


def parameters(model: Layers) -> int:
    """How many a model has."""
    return sum(layer.parameters for layer in model)


def vgg16() -> Layers:
    """VGG-16.

    Example:
        >>> parameters(vgg16())
        138357544
    """
    layers, into, places = list[Layer](), 3, 224
    for block, (channels, depth) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1):
        for number in range(1, depth + 1):
            layers.append(convolution(f"conv{block}_{number}", (into, channels), (3, 3), places, normalised=False))
            into = channels
        places //= 2
    return (*layers, dense("fc6", 7 * 7 * 512, 4096), dense("fc7", 4096, 4096), dense("fc8", 4096, 1000))


def resnet101() -> Layers:
    """ResNet-101.

    Example:
        >>> parameters(resnet101())
        44549160
    """
    layers, into, places = [convolution("conv1", (3, 64), (7, 7), 112)], 64, 56
    for stage, (width, depth) in enumerate([(64, 3), (128, 4), (256, 23), (512, 3)], start=2):
        for block in range(depth):
            name, shrinks = f"conv{stage}_{block}", stage > 2 and block == 0
            layers.append(convolution(f"{name}.1", (into, width), (1, 1), places))
            places = places // 2 if shrinks else places
            layers.append(convolution(f"{name}.2", (width, width), (3, 3), places))
            layers.append(convolution(f"{name}.3", (width, 4 * width), (1, 1), places))
            if block == 0:
                layers.append(convolution(f"{name}.shortcut", (into, 4 * width), (1, 1), places))
            into = 4 * width
    return (*layers, dense("fc", 2048, 1000))


def inception_v3() -> Layers:
    """Inception V3.

    Example:
        >>> parameters(inception_v3())
        23834568
    """
    stem = [(3, 32, 3, 149), (32, 32, 3, 147), (32, 64, 3, 147), (64, 80, 1, 73), (80, 192, 3, 71)]
    layers = [convolution(f"stem{i}", (a, b), (k, k), places) for i, (a, b, k, places) in enumerate(stem)]
    blocks = [("a", 192, 32), ("a", 256, 64), ("a", 288, 64), ("b", 288, 0)]
    blocks += [("c", 768, 128), ("c", 768, 160), ("c", 768, 160), ("c", 768, 192), ("d", 768, 0)]
    blocks += [("e", 1280, 0), ("e", 2048, 0)]
    for number, (kind, into, width) in enumerate(blocks):
        for branch, (channels, kernel, places) in enumerate(_BRANCHES[kind](into, width)):
            layers.append(convolution(f"{kind}{number}.{branch}", channels, kernel, places))
    return (*layers, dense("fc", 2048, 1000))


_Branch = list[tuple[tuple[int, int], tuple[int, int], int]]


def _a(into: int, pool: int) -> _Branch:
    return [
        ((into, 64), (1, 1), 35),
        ((into, 48), (1, 1), 35), ((48, 64), (5, 5), 35),
        ((into, 64), (1, 1), 35), ((64, 96), (3, 3), 35), ((96, 96), (3, 3), 35),
        ((into, pool), (1, 1), 35),
    ]  # fmt: skip


def _b(into: int, _: int) -> _Branch:
    return [((into, 384), (3, 3), 17), ((into, 64), (1, 1), 35), ((64, 96), (3, 3), 35), ((96, 96), (3, 3), 17)]


def _c(into: int, width: int) -> _Branch:
    return [
        ((into, 192), (1, 1), 17),
        ((into, width), (1, 1), 17), ((width, width), (1, 7), 17), ((width, 192), (7, 1), 17),
        ((into, width), (1, 1), 17), ((width, width), (7, 1), 17), ((width, width), (1, 7), 17),
        ((width, width), (7, 1), 17), ((width, 192), (1, 7), 17),
        ((into, 192), (1, 1), 17),
    ]  # fmt: skip


def _d(into: int, _: int) -> _Branch:
    return [
        ((into, 192), (1, 1), 17), ((192, 320), (3, 3), 8),
        ((into, 192), (1, 1), 17), ((192, 192), (1, 7), 17), ((192, 192), (7, 1), 17), ((192, 192), (3, 3), 8),
    ]  # fmt: skip


def _e(into: int, _: int) -> _Branch:
    return [
        ((into, 320), (1, 1), 8),
        ((into, 384), (1, 1), 8), ((384, 384), (1, 3), 8), ((384, 384), (3, 1), 8),
        ((into, 448), (1, 1), 8), ((448, 384), (3, 3), 8), ((384, 384), (1, 3), 8), ((384, 384), (3, 1), 8),
        ((into, 192), (1, 1), 8),
    ]  # fmt: skip


_BRANCHES = {"a": _a, "b": _b, "c": _c, "d": _d, "e": _e}

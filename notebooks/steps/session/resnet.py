"""ResNet-18 and ResNet-50 in plain torch, for the examples that want a large network. Nothing to start here.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", arXiv:1512.03385, table 1
(2015). The stride of a bottleneck is in its 3 x 3 convolution, as nearly all implementations since have it.
"""

from __future__ import annotations

import torch
from torch import nn


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size (divided by ``stride``), and its batch norm, which makes a bias needless."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return [conv, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """``relu(body(x) + shortcut(x))``; the shortcut is the identity where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, body: list[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def basic(inputs: int, width: int, stride: int) -> Residual:
    """Two 3 x 3 convolutions: ResNet-18's block."""
    body = [*conv_norm(inputs, width, 3, stride), nn.ReLU(inplace=True), *conv_norm(width, width, 3)]
    return Residual(inputs, width, stride, body)


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    """1 x 1 to fewer channels, 3 x 3 there, 1 x 1 to four times as many: ResNet-50's block."""
    down, middle = conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride)
    body = [*down, nn.ReLU(inplace=True), *middle, nn.ReLU(inplace=True), *conv_norm(width, 4 * width, 1)]
    return Residual(inputs, 4 * width, stride, body)


# Name: the block, how many of its width it puts out, and how many blocks each of the four stages has.
NETWORKS = {"resnet18": (basic, 1, (2, 2, 2, 2)), "resnet50": (bottleneck, 4, (3, 4, 6, 3))}


def resnet(name: str, channels: int = 3, classes: int = 1000) -> nn.Sequential:
    """Build ``resnet18`` or ``resnet50``.

    Args:
        name: which one.
        channels: of the images, of any size from 32 x 32 on.
        classes: how many scores it gives; they are not normalized.
    """
    block, factor, stages = NETWORKS[name]
    layers = [*conv_norm(channels, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = 64
    for stage, count in enumerate(stages):
        width = 64 * 2**stage
        for i in range(count):
            layers.append(block(inputs, width, stride=2 if stage > 0 and i == 0 else 1))
            inputs = width * factor
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

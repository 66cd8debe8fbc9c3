"""PyPI's torchvision is built for CUDA: beside a torch without it, it lacks two operators that its import names."""

import torch

KEPT = torch.library.Library("torchvision", "DEF")
if not torch.cuda.is_available():
    for name in ("nms", "qnms"):
        KEPT.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

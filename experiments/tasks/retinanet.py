"""RetinaNet: a one-stage detector on a ResNet, made for memory that follows the image's area alone.

Lin et al., *Focal Loss for Dense Object Detection*, ICCV 2017, as MMDetection 2.11 configures it
(``retinanet_r50_fpn``): pyramid levels P3 to P7 with P6 made from C5, 9 anchors a cell, focal loss,
L1 loss of the boxes. The image's size and the number of boxes fix every shape, and no value is
read, so that it runs on tensors without data, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

STRIDES = (8, 16, 32, 64, 128)
SCALES = tuple(4 * 2 ** (third / 3) for third in range(3))
RATIOS = (0.5, 1.0, 2.0)
NUM_ANCHORS = len(SCALES) * len(RATIOS)
POSITIVE_IOU, NEGATIVE_IOU = 0.5, 0.4
ALPHA = 0.25
_PRIOR = 0.01
_PUBLISHED_CHANNELS = 256
_CHUNK = 4  # boxes compared with all anchors at a time: a few MB an image, however many boxes


class Losses(NamedTuple):
    """What the detector returns while training; scalars.

    Attributes:
        loss: The sum of the other two.
        class_loss: Focal loss over the number of positive anchors.
        box_loss: L1 loss of the positive anchors' boxes over their number.
    """

    loss: Tensor
    class_loss: Tensor
    box_loss: Tensor


class FeaturePyramid(nn.Module):
    """P3 to P7 from C3, C4 and C5 (Lin et al., *Feature Pyramid Networks*, CVPR 2017)."""

    def __init__(self, in_channels: Sequence[int], channels: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(each, channels, 1) for each in in_channels)
        self.smooth = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in in_channels
        )
        self.sixth = nn.Conv2d(in_channels[-1], channels, 3, stride=2, padding=1)
        self.seventh = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Return five maps of equal channels, each half as wide as the one before."""
        maps = [lateral(each) for lateral, each in zip(self.lateral, features)]
        for finer in range(len(maps) - 2, -1, -1):
            coarser = functional.interpolate(maps[finer + 1], size=maps[finer].shape[-2:])
            maps[finer] = maps[finer] + coarser
        levels = [smooth(each) for smooth, each in zip(self.smooth, maps)]
        levels.append(self.sixth(features[-1]))
        levels.append(self.seventh(levels[-1]))
        return levels


def tower(channels: int, depth: int) -> nn.Sequential:
    """Return ``depth`` convolutions with ReLU, called once a pyramid level."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class RetinaNet(nn.Module):
    """The detector: backbone, pyramid, two towers shared by all levels, two outputs.

    Args:
        backbone: Returns ``feature_maps`` C3, C4 and C5 and has their widths as ``channels``.
        num_classes: Number of classes; there is none for the background.
        channels: Width of pyramid and towers.
        depth: Convolutions in a tower.
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int = 80, channels: int = 256, depth: int = 4
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.backbone = backbone
        self.pyramid = FeaturePyramid(backbone.channels, channels)
        self.towers = nn.ModuleList([tower(channels, depth), tower(channels, depth)])
        self.classes = nn.Conv2d(channels, NUM_ANCHORS * num_classes, 3, padding=1)
        self.boxes = nn.Conv2d(channels, NUM_ANCHORS * 4, 3, padding=1)
        # 0.01 as published, and as much signal handed on where there are fewer channels.
        std = 0.01 * math.sqrt(_PUBLISHED_CHANNELS / channels)
        for module in (*self.towers.modules(), self.classes, self.boxes):
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
        nn.init.constant_(self.classes.bias, -math.log((1 - _PRIOR) / _PRIOR))

    def predict(self, pixel_values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits ``(N, 9, classes, H, W)`` and offsets ``(N, 9, 4, H, W)`` of each level."""
        features = self.backbone(pixel_values).feature_maps
        logits, offsets = [], []
        for level in self.pyramid(features):
            logits.append(_by_anchor(self.classes(self.towers[0](level))))
            offsets.append(_by_anchor(self.boxes(self.towers[1](level))))
        return logits, offsets

    def forward(
        self, pixel_values: Tensor, boxes: Tensor, box_labels: Tensor, box_mask: Tensor
    ) -> Losses:
        """Return the losses of a batch.

        Args:
            pixel_values: Images, ``(N, 3, H, W)``.
            boxes: Corners ``x1, y1, x2, y2`` in pixels, ``(N, M, 4)``; at least one row.
            box_labels: Classes from 0, ``(N, M)``, ``int64``.
            box_mask: Which rows are boxes and not padding, ``(N, M)``, ``bool``.
        """
        logits, offsets = self.predict(pixel_values)
        with torch.no_grad():
            shapes = [each.shape[-2:] for each in logits]
            anchors = make_anchors(shapes, pixel_values.device)
            targets = assign(anchors, boxes, box_labels, box_mask)
            normaliser = targets.positive.sum().clamp(min=1)
        class_losses, box_losses = [], []
        first = 0
        for level_logits, level_offsets in zip(logits, offsets):
            cells = NUM_ANCHORS * level_logits.shape[-2] * level_logits.shape[-1]
            part = targets.part(first, first + cells)
            first += cells
            # In single precision, whatever autocast made the outputs.
            chosen = part.labels, part.positive, part.counted
            class_losses.append(focal_loss(level_logits.float(), *chosen))
            box_losses.append(box_loss(level_offsets.float(), part.offsets, part.positive))
        class_loss = torch.stack(class_losses).sum() / normaliser
        regression_loss = torch.stack(box_losses).sum() / normaliser
        return Losses(class_loss + regression_loss, class_loss, regression_loss)


def _by_anchor(output: Tensor) -> Tensor:
    return output.unflatten(1, (NUM_ANCHORS, -1))


def make_anchors(shapes: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return anchors of levels of these heights and widths as ``(4, A)``: x1, y1, x2, y2.

    Within a level the order is that of the outputs: anchor, row, column. Centres lie at multiples
    of the stride, as MMDetection's do.
    """
    levels = []
    for (height, width), stride in zip(shapes, STRIDES, strict=True):
        sides = [
            (stride * scale / math.sqrt(ratio) / 2, stride * scale * math.sqrt(ratio) / 2)
            for ratio in RATIOS
            for scale in SCALES
        ]
        half = torch.tensor(sides, device=device, dtype=torch.float32)
        x = (torch.arange(width, device=device, dtype=torch.float32) * stride)[None, None, :]
        y = (torch.arange(height, device=device, dtype=torch.float32) * stride)[None, :, None]
        half_width, half_height = half[:, 0, None, None], half[:, 1, None, None]
        corners = (x - half_width, y - half_height, x + half_width, y + half_height)
        shape = NUM_ANCHORS, height, width
        levels.append(torch.stack([each.expand(shape).reshape(-1) for each in corners]))
    return torch.cat(levels, dim=1)


@dataclass(frozen=True, slots=True)
class Targets:
    """What each of ``A`` anchors should predict.

    Attributes:
        labels: Class of the matched box, ``(N, A)``; any class where there is no match.
        positive: Whether a box is matched, ``(N, A)``.
        counted: Whether the anchor takes part in the class loss, ``(N, A)``.
        offsets: From the anchor to its box, ``(N, 4, A)``; finite where there is no match.
    """

    labels: Tensor
    positive: Tensor
    counted: Tensor
    offsets: Tensor

    def part(self, first: int, stop: int) -> Targets:
        """Return the targets of a range of anchors."""
        fields = self.labels, self.positive, self.counted, self.offsets
        return Targets(*(each[..., first:stop] for each in fields))


def assign(anchors: Tensor, boxes: Tensor, box_labels: Tensor, box_mask: Tensor) -> Targets:
    """Match boxes to anchors by their overlap, as MMDetection's ``MaxIoUAssigner`` does.

    An anchor gets the box that it overlaps most if that is at least 0.5, and the background below
    0.4. A box also gets those anchors that overlap it most, however little; of several such boxes
    the last.

    Args:
        anchors: As of :func:`make_anchors`.
        boxes: ``(N, M, 4)``.
        box_labels: ``(N, M)``.
        box_mask: ``(N, M)``; boxes where it is false match nothing.
    """
    shape = boxes.shape[0], anchors.shape[1]
    best = torch.zeros(shape, device=boxes.device)
    match = torch.zeros(shape, device=boxes.device, dtype=torch.int64)
    last_resort = torch.full_like(match, -1)
    for first in range(0, boxes.shape[1], _CHUNK):
        chunk = slice(first, first + _CHUNK)
        overlap = overlaps(anchors, boxes[:, chunk]) * box_mask[:, chunk, None]
        highest = overlap.amax(dim=2, keepdim=True)
        number = torch.arange(first, first + overlap.shape[1], device=boxes.device)
        resort = torch.where((overlap == highest) & (highest > 0), number[:, None], -1).amax(dim=1)
        last_resort = torch.maximum(last_resort, resort)
        most, where = overlap.max(dim=1)
        match = torch.where(most > best, where + first, match)
        best = torch.maximum(best, most)
    match = torch.where(last_resort >= 0, last_resort, match)
    positive = (best >= POSITIVE_IOU) | (last_resort >= 0)
    labels = box_labels.gather(1, match)
    corners = boxes.transpose(1, 2).gather(2, match[:, None].expand(-1, 4, -1))
    return Targets(labels, positive, positive | (best < NEGATIVE_IOU), encode(anchors, corners))


def overlaps(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return intersections over unions, ``(N, M, A)``, of ``(4, A)`` and ``(N, M, 4)`` corners."""
    x1, y1, x2, y2 = (each[..., None] for each in boxes.unbind(-1))
    width = (torch.minimum(x2, anchors[2]) - torch.maximum(x1, anchors[0])).clamp_(min=0)
    height = (torch.minimum(y2, anchors[3]) - torch.maximum(y1, anchors[1])).clamp_(min=0)
    shared = width.mul_(height)
    areas = (anchors[2] - anchors[0]) * (anchors[3] - anchors[1])
    return shared / ((x2 - x1) * (y2 - y1) + areas - shared).clamp_(min=1e-6)


def encode(anchors: Tensor, corners: Tensor) -> Tensor:
    """Return where ``(N, 4, A)`` boxes lie, seen from their anchors, ``(N, 4, A)``.

    Centres in units of the anchor's sides, sides as logarithms of their ratio.
    """
    anchor_sides, sides = anchors[2:] - anchors[:2], (corners[:, 2:] - corners[:, :2]).clamp_(min=1)
    shift = (corners[:, 2:] + corners[:, :2] - anchors[2:] - anchors[:2]) / 2
    return torch.cat([shift / anchor_sides, (sides / anchor_sides).log()], dim=1)


def box_loss(offsets: Tensor, wanted: Tensor, positive: Tensor) -> Tensor:
    """Return the sum of the positive anchors' absolute errors.

    Args:
        offsets: Predictions, ``(N, 9, 4, H, W)``.
        wanted: ``(N, 4, A)``, where ``A`` is 9 x H x W.
        positive: ``(N, A)``.
    """
    found = offsets.transpose(1, 2).flatten(2)
    return ((found - wanted).abs() * positive[:, None]).sum()


def focal_loss(logits: Tensor, labels: Tensor, positive: Tensor, counted: Tensor) -> Tensor:
    """Return the sum of the focal losses of a level, gamma 2 and alpha 0.25.

    Args:
        logits: ``(N, 9, classes, H, W)``.
        labels: ``(N, A)``, where ``A`` is 9 x H x W.
        positive: Whether the label counts, ``(N, A)``.
        counted: Whether the anchor does, ``(N, A)``.
    """
    shape = logits.shape[0], NUM_ANCHORS, 1, *logits.shape[-2:]
    return _FocalLoss.apply(logits, *(t.reshape(shape) for t in (labels, positive, counted)))


class _FocalLoss(torch.autograd.Function):
    """Keeps the logits alone for the backward pass, as MMCV's operator does.

    Composed of differentiable operators it would keep four tensors more of the logits' size, which
    are the largest of the whole model. All classes count as absent at first; the one that is there
    is then put right.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, labels: Tensor, positive: Tensor, counted: Tensor
    ) -> Tensor:
        ctx.save_for_backward(logits, labels, positive, counted)
        own = logits.gather(2, labels)
        absent = _term(own).mul_(1 - ALPHA)
        present = _term(-own).mul_(ALPHA)
        right = (present - absent) * positive
        everywhere = _term(logits).sum(2, keepdim=True).mul_(1 - ALPHA)
        return (everywhere * counted + right).sum()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, positive, counted = ctx.saved_tensors
        own = logits.gather(2, labels)
        present = _slope(-own).mul_(-ALPHA)
        absent = _slope(own).mul_(1 - ALPHA)
        slopes = _slope(logits).mul_(1 - ALPHA).mul_(counted)
        slopes.scatter_(2, labels, torch.where(positive, present, absent * counted))
        return slopes.mul_(outputs[0]), None, None, None


def _term(x: Tensor) -> Tensor:
    """Return ``sigmoid(x)^2 log(1 + e^x)``: the loss of a class that is absent, before alpha."""
    return torch.sigmoid(x).square_().mul_(functional.softplus(x))


def _slope(x: Tensor) -> Tensor:
    """Return the derivative of :func:`_term`: ``s^2 (2 (1 - s) log(1 + e^x) + s)``."""
    # In place, with one temporary: the backward pass of the finest level may be the step's peak.
    sigmoid = torch.sigmoid(x)
    slope = functional.softplus(x)
    slope.addcmul_(slope, sigmoid, value=-1).mul_(2).add_(sigmoid)
    return slope.mul_(sigmoid.square_())

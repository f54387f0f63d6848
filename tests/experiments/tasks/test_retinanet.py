"""The detector's losses against a readable reference that takes one anchor after another."""

import math

import pytest
import torch
from torch.nn import functional
from transformers import ResNetBackbone, ResNetConfig

from mimose.runtime.blocks import find_blocks
from mimose_bench.experiments.tasks import retinanet
from mimose_bench.experiments.tasks.retinanet import RetinaNet, assign, make_anchors, overlaps


def _detector(depths=(1, 1, 1, 1), num_classes=5):
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 16, 24, 32],
        depths=list(depths),
        out_features=["stage2", "stage3", "stage4"],
    )
    detector = RetinaNet(ResNetBackbone(config), num_classes=num_classes, channels=8, depth=2)
    # Outputs of all sizes: as initialised every logit is about -4.6.
    torch.nn.init.normal_(detector.classes.weight, std=0.5)
    torch.nn.init.normal_(detector.boxes.weight, std=0.5)
    return detector


def _boxes(height, width, count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    first = torch.rand(count, 2, generator=rng) * torch.tensor([width - 9, height - 9])
    sides = 6 + torch.rand(count, 2, generator=rng) * torch.tensor([width, height]) / 2
    last = torch.minimum(first + sides, torch.tensor([width, height]))
    return torch.cat([first, last], dim=1)


@pytest.fixture
def batch():
    """Three images with 7, no and 2 boxes, two of which are the same."""
    torch.manual_seed(1)
    boxes, mask = torch.zeros(3, 7, 4), torch.zeros(3, 7, dtype=torch.bool)
    for image, count in enumerate((7, 0, 2)):
        boxes[image, :count] = _boxes(64, 96, count, seed=image)
        mask[image, :count] = True
    boxes[2, 1] = boxes[2, 0]
    return {
        "pixel_values": torch.randn(3, 3, 64, 96),
        "boxes": boxes,
        "box_labels": torch.randint(0, 5, (3, 7)),
        "box_mask": mask,
    }


def _iou(a, b):
    shared = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def _reference_losses(logits, offsets, anchors, boxes, labels):
    """Losses of one image, not normalised, and its number of positive anchors.

    ``logits`` is ``(A, classes)``, ``offsets`` and ``anchors`` are ``(A, 4)``.
    """
    table = [[_iou(anchor, box) for box in boxes] for anchor in anchors.tolist()]
    chosen = []
    for row in table:
        best = max(row, default=0.0)
        chosen.append(row.index(best) if best >= 0.5 else -1 if best < 0.4 else None)
    for box in range(len(boxes)):
        most = max(row[box] for row in table)
        for anchor, row in enumerate(table):
            if most > 0 and row[box] == most:
                chosen[anchor] = box
    class_loss = box_loss = torch.zeros(())
    for anchor, box in enumerate(chosen):
        if box is None:
            continue
        wanted = torch.zeros(logits.shape[1])
        if box >= 0:
            wanted[labels[box]] = 1
            x1, y1, x2, y2 = boxes[box]
            a1, b1, a2, b2 = anchors[anchor].tolist()
            target = torch.tensor(
                [
                    ((x1 + x2) / 2 - (a1 + a2) / 2) / (a2 - a1),
                    ((y1 + y2) / 2 - (b1 + b2) / 2) / (b2 - b1),
                    math.log((x2 - x1) / (a2 - a1)),
                    math.log((y2 - y1) / (b2 - b1)),
                ]
            )
            box_loss = box_loss + (offsets[anchor] - target).abs().sum()
        p = logits[anchor].sigmoid()
        right = torch.where(wanted == 1, p, 1 - p)
        alpha = torch.where(wanted == 1, 0.25, 0.75)
        entropy = functional.binary_cross_entropy(p, wanted, reduction="none")
        class_loss = class_loss + (alpha * (1 - right) ** 2 * entropy).sum()
    return class_loss, box_loss, sum(box is not None and box >= 0 for box in chosen)


def _flat(levels):
    """Return ``(N, 9, C, H, W)`` maps as ``(N, A, C)``."""
    return torch.cat([m.permute(0, 1, 3, 4, 2).flatten(1, 3) for m in levels], dim=1)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_losses_and_gradients_are_those_of_the_reference(batch, chunk, monkeypatch):
    monkeypatch.setattr(retinanet, "_CHUNK", chunk)
    detector = _detector()
    losses = detector(**batch)
    losses.loss.backward()
    found = {n: p.grad.clone() for n, p in detector.named_parameters() if p.grad is not None}
    detector.zero_grad()

    logits, offsets = detector.predict(batch["pixel_values"])
    anchors = make_anchors([m.shape[-2:] for m in logits], torch.device("cpu")).T
    totals = torch.zeros(3)
    for image in range(3):
        count = int(batch["box_mask"][image].sum())
        parts = _reference_losses(
            _flat(logits)[image],
            _flat(offsets)[image],
            anchors,
            batch["boxes"][image, :count].tolist(),
            batch["box_labels"][image, :count].tolist(),
        )
        totals = totals + torch.stack([*parts[:2], torch.tensor(float(parts[2]))])
    assert totals[2] > 9
    assert losses.class_loss.item() == pytest.approx((totals[0] / totals[2]).item(), rel=1e-4)
    assert losses.box_loss.item() == pytest.approx((totals[1] / totals[2]).item(), rel=1e-4)
    ((totals[0] + totals[1]) / totals[2]).backward()
    for name, parameter in detector.named_parameters():
        if name in found:
            scale = parameter.grad.abs().max()
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-4 * scale)


def test_a_batch_without_boxes_has_a_finite_loss(batch):
    batch["box_mask"][:] = False
    losses = _detector()(**batch)
    assert losses.box_loss == 0
    assert losses.loss.isfinite()


def test_the_number_of_padded_boxes_changes_nothing(batch):
    detector = _detector().eval()
    few = detector(**batch).loss
    for name, value in (("boxes", 9.0), ("box_labels", 3), ("box_mask", False)):
        more = batch[name].new_full((3, 6, *batch[name].shape[2:]), value)
        batch[name] = torch.cat([batch[name], more], dim=1)
    assert torch.equal(detector(**batch).loss, few)


def test_losses_are_in_single_precision_under_autocast(batch):
    detector = _detector().eval()
    with torch.no_grad():
        wanted = detector(**batch)
        with torch.autocast("cpu", torch.bfloat16):
            found = detector(**batch)
    assert found.loss.dtype == torch.float32
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=0.02)


def test_the_focal_losss_slope_is_exact():
    torch.manual_seed(0)
    logits = torch.randn(2, 9, 3, 2, 2, dtype=torch.double, requires_grad=True)
    labels = torch.randint(0, 3, (2, 36))
    positive, counted = torch.rand(2, 36) < 0.3, torch.rand(2, 36) < 0.7
    counted |= positive
    assert torch.autograd.gradcheck(
        lambda x: retinanet.focal_loss(x, labels, positive, counted), (logits,)
    )


def test_anchors_are_mmdetections():
    anchors = make_anchors([(100, 168), (50, 84), (25, 42), (13, 21), (7, 11)], torch.device("cpu"))
    assert anchors.shape == (4, 9 * (100 * 168 + 50 * 84 + 25 * 42 + 13 * 21 + 7 * 11))
    sides = anchors[2:] - anchors[:2]
    areas = sides.prod(0).sqrt()
    assert areas.min().item() == pytest.approx(32)
    assert areas.max().item() == pytest.approx(512 * 2 ** (2 / 3))
    assert {round(x, 3) for x in (sides[1] / sides[0]).unique().tolist()} == {0.5, 1.0, 2.0}
    assert overlaps(anchors[:, :1], anchors[:, :1].T[None]).item() == pytest.approx(1)


def test_a_small_box_gets_its_best_anchor():
    anchors = make_anchors([(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)], torch.device("cpu"))
    tiny = torch.tensor([[[20.0, 20.0, 26.0, 26.0]]])
    targets = assign(anchors, tiny, torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.bool))
    assert targets.positive.sum() >= 1
    assert set(targets.labels[targets.positive].tolist()) == {3}
    assert targets.counted.all()


@pytest.mark.parametrize(("depths", "count"), [((3, 4, 6, 3), 16), ((3, 4, 23, 3), 33)])
def test_blocks_are_the_bottlenecks_and_the_towers(depths, count):
    with torch.device("meta"):
        detector = _detector(depths)
    names = [block.name for block in find_blocks(detector)]
    assert len([n for n in names if n.startswith("backbone.encoder.stages.")]) == count
    assert names[count:] == ["towers.0", "towers.1"]

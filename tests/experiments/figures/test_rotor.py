"""ResNet-1001 and the comparison of Rotor with its rivals."""

from dataclasses import replace
from functools import partial

import pytest

from mimose.devices.sim.device import SimDevice
from mimose.devices.sim.gpus import load_gpu
from mimose_bench.experiments.figures import rotor
from mimose_bench.experiments.figures.resnet1001 import BLOCKS, ImageWorkload, ResNet
from mimose_bench.experiments.figures.session import opened, training


def plain_peak(blocks):
    workload = ImageWorkload(blocks=(blocks,) * len(BLOCKS))
    gpu = replace(load_gpu("v100-32gb"), memory_bytes=1 << 40)
    device = SimDevice(gpu)
    try:
        with training(device, workload, "baseline") as session:
            session.take(workload.batch())
            return session.take(workload.batch()).peak_allocated_bytes
    finally:
        device.close()


def test_plain_training_of_the_whole_network_takes_what_the_paper_says():
    # Stages are alike, so that a few blocks more in each tell what 111 take.
    few, more = plain_peak(2), plain_peak(4)
    whole = few + (more - few) // 2 * (BLOCKS[0] - 2)
    assert whole == pytest.approx(rotor.PLAIN_BYTES, rel=0.02)


def test_the_network_has_a_thousand_and_one_layers():
    network = ResNet((1, 1, 1), (4, 4, 4))
    layers_of_a_block = sum(1 for name, _ in network.blocks[1].named_modules() if "conv" in name)
    assert sum(BLOCKS) * layers_of_a_block + 2 == 1001  # And the first and the last layer.


def test_rotor_is_never_behind_and_plans_keep_the_budget():
    result = rotor.check(partial(opened, "sim:v100"), blocks=3)
    assert result.passed, result.criteria
    (table,) = result.tables
    assert table.rows
    assert len(table.headers) == len(rotor.PLANNERS) + 2
    assert not result.rows  # Nothing of the paper is about this one.
    text = str(table.rows)
    assert "(" in text
    assert "needs" in text

"""How close the estimator and the peak model come to what is measured."""

import dataclasses
import random
import statistics

import pytest
from conftest_names import Collecting, Fixed, Knowledge, Lab, make_deep, open_device, predict_peak

from mimose.plan import Plan

SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)

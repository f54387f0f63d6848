"""Lets the zoo's tests and ``scripts/zoo.py`` import the modules beside this file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "remaking"))

"""How many processes train together, and which one this is."""

from __future__ import annotations

import os

import torch.distributed as dist


def num_processes() -> int:
    """Return how many processes the default group has; 1 without one."""
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def rank() -> int:
    """Return this process's rank in the default group; 0 without one."""
    return dist.get_rank() if num_processes() > 1 else 0


def started_together() -> int:
    """Return how many processes a launcher such as ``torchrun`` says that it started."""
    return number_given("WORLD_SIZE", 1)


def number_given(name: str, default: int) -> int:
    """Return a launcher's variable, or ``default`` where it is no number or not set."""
    given = os.environ.get(name, "")
    return int(given) if given.isdigit() else default

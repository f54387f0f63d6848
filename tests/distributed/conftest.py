"""Starts processes that train together, as torchrun would, and reads what each has to say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Ended:
    """How one process ended, and when its program was over (in seconds since the epoch)."""

    status: int
    over: float
    errors: str
    told: dict[str, Any]


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., list[Ended]]:
    """Return a function that runs a scenario of the worker's in processes of their own."""

    def start(
        *scenarios: str, num_processes: int = 2, timeout: float = 120, worker: Path = WORKER
    ) -> list[Ended]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_processes),
            "OMP_NUM_THREADS": "1",
        }
        begun = time.monotonic()
        running = []
        for rank in range(num_processes):
            command = [sys.executable, str(worker), str(tmp_path), *scenarios]
            errors = (tmp_path / f"errors-{rank}").open("w+")
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            running.append((subprocess.Popen(command, env=own, stderr=errors), errors))
        ended = []
        try:
            for rank, (process, errors) in enumerate(running):
                status = process.wait(max(1.0, timeout - (time.monotonic() - begun)))
                errors.seek(0)
                over = tmp_path / f"over-{rank}"
                told = tmp_path / f"told-{rank}.json"
                ended.append(
                    Ended(
                        status,
                        float(over.read_text()) if over.exists() else time.time(),
                        errors.read(),
                        json.loads(told.read_text()) if told.exists() else {},
                    )
                )
        finally:
            for process, errors in running:
                process.kill()
                process.wait()
                errors.close()
        return ended

    return start

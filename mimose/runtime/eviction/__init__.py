"""Tensor-level runtimes: storages are evicted and brought back within a step (DTR, DELTA)."""

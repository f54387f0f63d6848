"""The paper's figures and tables as checks: what it shows, what comes out here, how far off.

A module a figure. Each measures on a device that it is handed the means to open, and judges what
it measured against the paper with tolerances that stand beside the expected values. The registry
is :mod:`mimose_bench.experiments.figures.reproduce`.
"""

"""Mimose: collector, estimator, scheduler and the planner that joins them."""

"""Pure functions from costs and a budget to a plan."""

"""Tasks, the training loop and its records."""

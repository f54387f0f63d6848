"""Train PyTorch models under a memory budget."""

"""Find a model's blocks and carry a plan out on them."""

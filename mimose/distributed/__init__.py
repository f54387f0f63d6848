"""Training in several processes: what is wrapped, what they agree on, and how one ends them all."""

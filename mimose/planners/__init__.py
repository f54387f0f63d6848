"""One file a system."""

"""Many runs from one grid: each a process of its own, resumed where they stopped."""

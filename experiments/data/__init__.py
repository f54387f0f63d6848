"""Where a task's batches come from: the hub, a local file, or a generator that needs neither."""

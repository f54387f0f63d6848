"""One file a task: model, data, loss."""

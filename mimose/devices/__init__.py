"""Where tensors live, what memory is in use, what the budget is, what time it is."""

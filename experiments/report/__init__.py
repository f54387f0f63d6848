"""What checks came to, as a page to read and as Markdown; see :mod:`.contents` for what is in it."""

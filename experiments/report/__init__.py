"""What checks came to, as a page to read and as Markdown."""

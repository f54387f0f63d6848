"""The mimose-bench command line."""


def main() -> None:
    """Run the command line."""

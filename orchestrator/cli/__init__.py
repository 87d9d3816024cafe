"""codemend CLI."""


def main() -> None:
    """Entry."""

"""Version 1 of the orchestrator contract; the build makes its stubs here."""

"""Version 1 of the sandbox contract; the build makes its stubs here."""

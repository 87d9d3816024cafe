"""The sandbox service: runs programs and tests that nobody trusts."""

"""Attacks on the sandbox, as data, and what runs them on every kind of cell."""

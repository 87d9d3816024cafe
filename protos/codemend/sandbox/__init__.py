"""Contracts of the sandbox service."""

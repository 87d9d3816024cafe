"""Contracts of the orchestrator."""

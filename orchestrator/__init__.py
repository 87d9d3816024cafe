"""The orchestrator service: workflows that write code, test it and repair it."""

"""The contracts of codemend, and the plumbing that both of its services share."""

"""What the source of the trusted tests tells before any code of the candidate is imported.

`planning` puts it together: which tests must report, and whether they exchange plain data only with the code under
test, so that it can run in a process of its own. Nothing here executes a test.
"""

"""Runs tests with pytest and reports them: the session of a test template, and its guards against tampering.

The guards serve where the code under test shares the tests' process: `canaries` among the tests, and a look in between
at what must not change. They and the reporter are the guest's only modules that need more than the standard library.
"""

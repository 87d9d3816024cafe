"""A test run in two processes: what the judge, which has the tests, and the candidate say to each other.

Only plain values cross, as bytes that either side reads without trust; whatever is not plain stays with the candidate
and is named. Whether the tests allow for it is settled in `analysis`.
"""

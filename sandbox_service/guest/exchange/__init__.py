"""What crosses the border between the service and a cell: messages, frames, sealed reports and files.

The service imports modules from here, from `confinement` (names and numbers) and from nowhere else in the guest. What
judge and candidate say to each other inside a cell is in `dialogue`.
"""

"""The walls of a cell: the root that a job sees, its namespaces and mounts, the filter of system calls, Landlock.

`walls` raises them all and tells which can be had here, by `chroots` where the kernel has no mount namespaces. `probe`
is the program of the start-up proof, which tries them from inside.
"""

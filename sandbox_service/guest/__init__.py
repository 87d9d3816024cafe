"""What runs inside a cell: standard library only, and pytest in the reporter.

`template` is exec'ed by the service, builds a root that holds no file of the host's own, and forks once for every
job. `cell` is process 1 of a job: it raises the walls. `program` is process 2: it gives up what is left of its powers
and becomes the program. In a container `container` takes the place of the first two, and `relay` that of the service.
"""

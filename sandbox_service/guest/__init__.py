"""What runs inside a cell: standard library only, and pytest in the reporter. Each layer imports those below it.

`template` is exec'ed by the service, builds a root that holds no file of the host's own, and forks once for every job.
In a container `container` takes its place, and `relay` that of the service. They are the entries; below them come
`testing`, `analysis`, `dialogue`, `process`, `exchange` and `confinement`. `node` is that language's reporter.
"""

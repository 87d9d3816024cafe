"""The processes of a job: process 1, which raises the walls and reaps, and process 2, which becomes the program.

Beside them is what prepares them (`ready`, `spare`, `preload`), what measures them (`tally`, `watch`, `coverage`) and
what ends them (`ending`). Who starts them stands above: `template` and `container`.
"""

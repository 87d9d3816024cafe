"""Modules that a template imports ahead of its jobs, so that their imports cost a job nothing.

A job must not be able to tell: what such a module makes up at its import and must not share is made anew in each job.
"""

import importlib
import os
import sys
from collections.abc import Iterable

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What numeric libraries read their number of threads from when they are loaded."""


_loaded: dict[str, list[str]] = {}
"""Names of the modules that were imported here, with those that they needed, by the first part of the name."""


def load(names: Iterable[str], threads: int) -> None:
    """Imports modules with all that they need, without a thread: a process that forks must have one only.

    Args:
        names: full names of the modules.
        threads: descriptor of this process's folder /proc/self/task; closed at the end.

    Raises:
        ImportError: one of them is not there.
        RuntimeError: one of them started a thread.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    before = set(sys.modules)
    for name in names:
        importlib.import_module(name)
        if (number := len(os.listdir(threads))) > 1:
            raise RuntimeError(f"{name} started {number - 1} threads when it was imported")
    os.close(threads)
    for name in sys.modules.keys() - before:
        _loaded.setdefault(name.partition(".")[0], []).append(name)


def renew(paths: Iterable[str]) -> None:
    """In a job: makes what it finds loaded its own.

    Modules of its own hide loaded ones of their names, as they do where nothing is loaded. Its random numbers are those
    of no other job; python's own generator sees to that itself at a fork.

    Args:
        paths: of the job's files.
    """
    for own in {path.partition("/")[0].partition(".")[0] for path in paths} if _loaded else ():
        for name in _loaded.get(own, ()):  # not through all of them: in a fork that copies the memory of each
            sys.modules.pop(name, None)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()

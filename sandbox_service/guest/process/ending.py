"""The end of a python program in a forked interpreter: what `Py_FinalizeEx` does, for the program's part alone.

Taking down what the template had loaded before the program came would cost as much as the whole rest of a small job,
since every object that is freed is first copied, page by page; nobody could see that it was done. Threads that are
not daemons are waited for, exit handlers run, the program's own modules and all that hangs on them are destroyed in
the interpreter's order, streams are flushed, and the C library's exit handlers run. Where that might not be the same
(threads still run, extension modules of a package, a tracer, a stream that cannot be flushed) the interpreter does it.
"""

import _thread
import atexit
import builtins
import ctypes
import gc
import importlib.machinery
import sys
import types
import weakref
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox_service.guest.confinement import rootfs

_SYS_NAMES = (
    "path", "argv", "ps1", "ps2", "last_type", "last_value", "last_traceback", "path_hooks", "path_importer_cache",
    "meta_path", "__interactivehook__",
)  # fmt: skip
"""What the interpreter takes out of `sys` before it destroys modules; an import fails from then on."""


_leave = ctypes.PyDLL(None).exit


@dataclass(frozen=True, slots=True)
class Loaded:
    """The youngest entries of the interpreter's tables before the program ran; what is younger is the program's."""

    module: str
    sys_name: str
    builtin: str


def loaded() -> Loaded:
    """What to give to `end` later."""
    return Loaded(*(next(reversed(table)) for table in (sys.modules, sys.__dict__, builtins.__dict__)))


def end(status: int, before: Loaded) -> NoReturn:
    """Ends this process.

    Args:
        status: exit code; 120 instead where standard output cannot be flushed.
        before: what `loaded` gave when the program had not run yet.
    """
    leave = ctypes.pythonapi.Py_Exit
    _hide_own_frames()
    try:
        if threading := sys.modules.get("threading"):
            threading._shutdown()  # noqa: SLF001 - the interpreter's own first step
        atexit._run_exitfuncs()  # noqa: SLF001 - and its second; both do nothing when they are called again
        modules = _modules_since(before)
        if modules is not None and _flushed():
            kept = _destroy(modules, before)
            if _flushed():
                leave = _leave
    except BaseException:  # then, as above, the interpreter goes through its steps again, and tells what fails
        kept = {}
    leave(ctypes.c_int(status))
    raise AssertionError("the process has ended", kept)


def _hide_own_frames() -> None:
    """What fails on the way is told as if C code had called it, as it is in the interpreter's own end."""
    tell = sys.unraisablehook

    def tell_without(given: Any) -> None:  # noqa: ANN401 - the interpreter makes it, and its type has no name
        trace = given.exc_traceback
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        fields = (given.exc_type, given.exc_value, trace, given.err_msg, given.object)
        tell(type(given)(fields))

    sys.unraisablehook = tell_without


def _modules_since(before: Loaded) -> list[tuple[str, Any]] | None:
    """The program's modules in the order of their import; None where the interpreter itself has to end."""
    if _thread._count() or sys.gettrace() or sys.getprofile():  # noqa: SLF001
        return None
    if type(sys.modules) is not dict or before.module not in sys.modules:
        return None
    found: list[tuple[str, Any]] = []
    for name in reversed(sys.modules):
        if name == before.module:
            break
        found.append((name, sys.modules[name]))
    if any(_is_extension_of_a_package(module) for _name, module in found):
        return None
    return [("__main__", sys.modules.get("__main__")), *reversed(found)]


def _is_extension_of_a_package(module: object) -> bool:
    """Such a module may have asked for a call at the interpreter's end; those of the interpreter have not."""
    spec = getattr(module, "__spec__", None)
    if not isinstance(getattr(spec, "loader", None), importlib.machinery.ExtensionFileLoader):
        return False
    return str(getattr(spec, "origin", "")).startswith((rootfs.PACKAGES, rootfs.WORK))


def _flushed() -> bool:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            try:
                stream.flush()
            except BaseException:
                return False
    return True


def _destroy(modules: list[tuple[str, Any]], before: Loaded) -> dict[str, Any]:
    """In the order of `finalize_modules`: cycles, what `sys` holds, the modules, and what still lives after that.

    Returns what must not be freed.
    """
    sys.is_finalizing = lambda: True
    if gc.isenabled():
        gc.collect()
    builtins.__dict__.pop("_", None)
    for name in _SYS_NAMES:
        sys.__dict__[name] = None
    for name in ("stdin", "stdout", "stderr"):
        sys.__dict__[name] = sys.__dict__.get(f"__{name}__")
    alive = [weakref.ref(module) for _name, module in modules if isinstance(module, types.ModuleType)]
    kept = sys.modules.copy()
    for name in [name for name, _module in modules]:
        del kept[name]
    sys.modules.clear()  # an import fails from here on
    modules.reverse()
    while modules:
        modules.pop()
    for name in _younger(builtins.__dict__, before.builtin):
        del builtins.__dict__[name]
    gc.collect()
    while alive:
        _clear(alive.pop()())
    for name in _younger(sys.__dict__, before.sys_name):
        sys.__dict__[name] = None
    gc.collect()
    return kept


def _clear(module: types.ModuleType | None) -> None:
    """As `_PyModule_Clear`: names with one leading underscore first, then all others; builtins to the last."""
    if module is None:
        return
    namespace = module.__dict__
    del module
    for is_first in (True, False):
        for name in list(namespace):
            if isinstance(name, str) and name != "__builtins__":
                has_underscore = name.startswith("_") and not name.startswith("__")
                if (has_underscore or not is_first) and namespace.get(name) is not None:
                    namespace[name] = None


def _younger(table: dict[str, Any], youngest: str) -> list[str]:
    found = []
    for name in reversed(table):
        if name == youngest:
            break
        found.append(name)
    return found

"""Landlock: which places a job's program may read, run and write in, as a second wall behind its mounts and user id.

The kernel holds a program to it whatever its user, capabilities and mounts are; it also keeps signals and abstract
sockets inside the job. What this kernel has is found out once, in the template.
"""

import contextlib
import ctypes
import os
import struct

from sandbox_service.guest.confinement import rootfs, syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights over files that exist since a version of the interface."""
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_SCOPES_SINCE, _LEAST, _NEWEST = 6, 2, 7
"""Version 1 forbids every move of a file from one directory to another, which honest programs do."""
_VERSION, _PATH_BENEATH = 1, 1
_ATTRIBUTES_BYTES = 24
"""Of `struct landlock_ruleset_attr`, which has grown: older kernels take its end as long as it is zero."""


class _Rule(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


class Ruleset:
    """What a job may do with which places, prepared once for all jobs.

    Attributes:
        version: of the kernel's interface that is used.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        handled = _RIGHTS[max(since for since in _RIGHTS if since <= version)]
        scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= _SCOPES_SINCE else 0
        everything = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEVICE)
        devices = handled & (_READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE)
        self._places = (
            ("/", _EXECUTE | _READ_FILE | _READ_DIR),
            ("/dev", devices),
            *((place, everything) for place in rootfs.WRITABLE.values()),
        )
        self._attributes = ctypes.create_string_buffer(struct.pack("=QQQ", handled, 0, scopes), _ATTRIBUTES_BYTES)
        self._rule, self._made = _Rule(), ctypes.c_ulong()
        attributes, rule = ctypes.addressof(self._attributes), ctypes.addressof(self._rule)
        self._create = syscalls.Prepared("landlock_create_ruleset", attributes, _ATTRIBUTES_BYTES, 0)
        self._add = syscalls.Prepared("landlock_add_rule", self._made, _PATH_BENEATH, rule, 0)
        self._restrict = syscalls.Prepared("landlock_restrict_self", self._made, 0)

    def describe(self) -> str:
        """What it does for a job here, in a sentence."""
        scopes = "; signals and abstract sockets stay inside the job" if self.version >= _SCOPES_SINCE else ""
        return f"version {self.version}: files can be written in the job's own places alone{scopes}"

    def restrict(self) -> None:
        """Restricts this process, for good, with all that it will start or become. It has no_new_privs already.

        Raises:
            OSError: the kernel refused it although `probe` had found it.
        """
        ruleset = self._made.value = self._create()
        for place, rights in self._places:
            descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
            self._rule.rights, self._rule.descriptor = rights, descriptor
            self._add()
            os.close(descriptor)
        self._restrict()
        os.close(ruleset)


def probe() -> Ruleset | None:
    """What can be used here; None: nothing."""
    with contextlib.suppress(OSError):
        version = syscalls.call("landlock_create_ruleset", 0, 0, _VERSION)
        return Ruleset(min(version, _NEWEST)) if version >= _LEAST else None
    return None

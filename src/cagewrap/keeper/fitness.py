"""Whether a program can run in a cage at all, found out before it is started.

The kernel says no more than ENOENT or ENOEXEC for a program whose loader or interpreter is not
there. In doubt (a file that cannot be read from outside) nothing is said, and the runtime tries.
"""

from __future__ import annotations

import os

from cagewrap.elf import Elf, Script, read_program
from cagewrap.errors import AgentNotExecutableError, CagewrapError
from cagewrap.keeper.cageroot import CageRoot, reopened
from cagewrap.model import DEFAULT_IMAGE
from cagewrap.sessions import Record

_MAX_DEPTH = 4
"""Of interpreters that are scripts themselves; the kernel's limit is the same."""
_PATH_MAX = 4096
"""Bytes of a path with its NUL (linux/limits.h); some runtimes print a longer one whole."""
_BINFMT = "/proc/sys/fs/binfmt_misc"
_MUSL = tuple(f"/lib/ld-musl-{one}.so.1" for one in ("x86_64", "aarch64", "armhf", "i386"))

_Stamp = tuple[int, int, int, int]


class Fitness:
    """Of one running container; what was found fit is not looked at again."""

    def __init__(self, record: Record) -> None:
        """Looks at nothing yet."""
        self._record = record
        self._machine = os.uname().machine
        self._fit: dict[tuple[bytes, bytes, bytes], _Stamp] = {}

    def check(self, root: CageRoot, name: bytes, search_path: bytes, cwd: bytes) -> None:
        """Raise AgentNotExecutableError when a command surely cannot run in the cage."""
        if len(name) >= _PATH_MAX:
            raise AgentNotExecutableError(
                f"A program's name has {len(name)} bytes, and no more than {_PATH_MAX - 1} are "
                "possible.",
                "cagewrap -- PROGRAM ARGUMENTS…",
            )
        _, fd = root.find(name, search_path, cwd)
        if fd < 0:
            return
        try:
            found = os.fstat(fd)
            key = (name, search_path, cwd)
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._fit.get(key) == stamp:
                return
            try:
                why = self._why_not(root, fd, name, search_path, cwd, 0)
            except OSError:
                return
        finally:
            os.close(fd)
        if why is not None:
            raise why
        self._fit[key] = stamp

    def _why_not(
        self, root: CageRoot, fd: int, path: bytes, search_path: bytes, cwd: bytes, depth: int
    ) -> CagewrapError | None:
        kind = _kind(fd)
        shown = os.fsdecode(path)
        if isinstance(kind, Elf):
            return self._why_no_elf(root, kind, shown)
        if not isinstance(kind, Script) or depth >= _MAX_DEPTH:
            return None
        for wanted in dict.fromkeys((kind.interpreter, kind.wanted)):
            found, inner = root.find(os.fsencode(wanted), search_path, cwd)
            if inner >= 0:
                try:
                    why = self._why_not(root, inner, found, search_path, cwd, depth + 1)
                finally:
                    os.close(inner)
                if why is not None:
                    return why
            elif "/" not in wanted or root.lacks(wanted):
                return self._no_interpreter(shown, wanted)
        return None

    def _why_no_elf(self, root: CageRoot, kind: Elf, shown: str) -> CagewrapError | None:
        if not kind.runs_on(self._machine) and not _is_emulated():
            return AgentNotExecutableError(
                f"{shown} is made for another processor ({kind.machine}); this machine is "
                f"{self._machine}.",
                self._another_image()
                if root.lacks("/bin/sh") or self._is_foreign(root)
                else f"install the build for {self._machine} in the cage, with `cagewrap shell`",
            )
        if not kind.loader.startswith("/") or not root.lacks(kind.loader):
            return None
        library = "musl" if "musl" in kind.loader else "glibc"
        return AgentNotExecutableError(
            f"{shown} is a program for {library}: it is started by {kind.loader}, which the image "
            f"{self._record.image} does not have ({_library_of(root)}).",
            self._another_image(),
        )

    def _no_interpreter(self, shown: str, wanted: str) -> AgentNotExecutableError:
        name = os.path.basename(wanted)
        text = f"{shown} is a script for {wanted}, which is not in the image {self._record.image}"
        if name in ("node", "bun", "deno"):
            return AgentNotExecutableError(
                f"{text}, and no {name} was found on this machine that could be lent.",
                self._another_image(),
            )
        return AgentNotExecutableError(f"{text}.", self._another_image())

    def _another_image(self) -> str:
        """The command that takes another image for this session."""
        image = self._record.image
        wanted = DEFAULT_IMAGE if image != DEFAULT_IMAGE else "IMAGE"
        session = f" --session {self._record.session}" if self._record.session else ""
        return (
            f"cagewrap rm {self._record.name}, then: cagewrap{session} --image {wanted} -- COMMAND"
        )

    def _is_foreign(self, root: CageRoot) -> bool:
        """Whether the image as a whole is for another processor, by its shell."""
        _, fd = root.find(b"/bin/sh", b"", b"/")
        if fd < 0:
            return False
        try:
            kind = _kind(fd)
        except OSError:
            return False
        finally:
            os.close(fd)
        return isinstance(kind, Elf) and not kind.runs_on(self._machine)


def _kind(fd: int) -> Elf | Script | None:
    readable = reopened(fd)
    try:
        return read_program(readable)
    finally:
        os.close(readable)


def _library_of(root: CageRoot) -> str:
    """What C library an image has, in words."""
    if any(not root.lacks(path) for path in _MUSL):
        return "its C library is musl"
    if any(not root.lacks(path) for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/libc.so.6")):
        return "its C library is glibc"
    return "it has no C library"


def _is_emulated() -> bool:
    """Whether the kernel may hand programs of other processors to an emulator."""
    try:
        return any(name not in ("register", "status") for name in os.listdir(_BINFMT))
    except OSError:
        return False

"""The C library of this machine's programs, for an image that has none."""

from __future__ import annotations

import os

from cagewrap.elf import Elf, read_program_at

BASICS = frozenset(
    (
        "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2",
        "libutil.so.1", "libstdc++.so.6", "libgcc_s.so.1", "libatomic.so.1",
    )
)  # fmt: skip
"""What programs that are made to run on any Linux rely on."""


def is_self_contained(program: Elf) -> bool:
    """Whether a program needs no library but those that it finds wherever its loader is."""
    return all(name in BASICS or name.startswith(("ld-", "libc.musl-")) for name in program.needed)


def find_libraries(program: Elf) -> dict[str, str]:
    """The loader of a program and the libraries it needs, as found on this machine.

    By the path at which the program or its loader looks for each, the real path of the file.
    Empty when one of them is not beside the loader.
    """
    loader = os.path.realpath(program.loader)
    directory = os.path.dirname(loader)
    found = {program.loader: loader}
    wanted = list(program.needed)
    seen = {os.path.basename(program.loader), os.path.basename(loader)}
    while wanted:
        name = wanted.pop()
        if name in seen or name.startswith("libc.musl-"):  # musl's loader is its C library
            continue
        seen.add(name)
        real = os.path.realpath(os.path.join(directory, name))
        library = read_program_at(real, libraries=True)
        if not isinstance(library, Elf):
            return {}
        found[os.path.join(directory, name)] = real
        wanted += library.needed
    return found if os.path.isfile(loader) else {}

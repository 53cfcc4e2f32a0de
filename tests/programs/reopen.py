"""Tries to reach the host's file behind each of its descriptors: reopen.py FILE-FOR-WHAT-IT-READ.

For every descriptor: open it again through /proc for reading, for writing and for both, write to
it, cut it, change its mode; and if it is a directory, what lies in it and above it.
"""

import contextlib
import os
import sys

found = []
for fd in (0, 1, 2):
    path = f"/proc/self/fd/{fd}"
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        with contextlib.suppress(OSError):
            again = os.open(path, flags | os.O_NONBLOCK)
            if flags in (os.O_WRONLY, os.O_RDWR) and fd == 0:
                with contextlib.suppress(OSError):
                    os.write(again, b"EVIL")
                with contextlib.suppress(OSError):
                    os.pwrite(again, b"EVIL", 0)
            if flags in (os.O_RDONLY, os.O_RDWR) and fd != 0:
                with contextlib.suppress(OSError):
                    found.append(os.pread(again, 4096, 0))
                with contextlib.suppress(OSError):
                    found.append(os.read(again, 4096))
            os.close(again)
    for change in (
        lambda path=path: os.truncate(path, 0),
        lambda path=path: os.chmod(path, 0o777),
        lambda path=path: found.append(repr(os.listdir(path)).encode()),
        lambda path=path: found.append(repr(os.listdir(path + "/..")).encode()),
        lambda path=path: os.mkdir(path + "/evil"),
        lambda fd=fd: found.append(repr(os.listdir(fd)).encode()),
        lambda fd=fd: os.mkdir("evil", dir_fd=fd),
        lambda fd=fd: os.fchmod(fd, 0o777),
        lambda fd=fd: os.ftruncate(fd, 0),
        lambda fd=fd: found.append(os.pread(fd, 4096, 0)),
    ):
        with contextlib.suppress(OSError):
            change()
with open(sys.argv[1], "wb") as file:
    file.write(b"\n".join(found))

"""Where a text stands, for whoever runs this: files, and what /proc shows of processes.

The text is read from stdin, so that no command line or environment holds it. Prints a JSON list of
paths; of processes `/proc/environ` and the like, without their numbers. Memory is not looked at.
"""

import json
import os
import stat
import sys

needle = sys.stdin.buffer.read().strip()
MOST_BYTES = 4 << 20
SKIPPED = ("/proc", "/sys", "/dev")


def holds(path):
    try:
        with open(path, "rb") as file:
            return needle in file.read(MOST_BYTES)
    except OSError:
        return False


def files(root):
    for directory, below, names in os.walk(root):
        below[:] = [one for one in below if os.path.join(directory, one) not in SKIPPED]
        for name in names:
            path = os.path.join(directory, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield path
            except OSError:
                continue


def process_files():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline", "comm", "mountinfo", "status", "auxv", "stat"):
            yield f"/proc/{pid}/{name}"
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                if os.readlink(path).startswith(("/memfd:", "/tmp", "/run")):
                    yield path
        except OSError:
            continue


roots = sys.argv[1:] or ["/"]
found = {path for root in roots for path in files(root) if holds(path)}
if not sys.argv[1:]:
    found |= {"/proc/" + path.split("/")[3] for path in process_files() if holds(path)}
print(json.dumps(sorted(found)))

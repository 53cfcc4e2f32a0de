"""A harness, on the host: harness.py KIND COMMAND…

Starts the command as harnesses do and prints its pid; holds its ends of stdin and stdout until it
is killed. KIND: `pipes` or `sockets` (stdin and stdout), `file:PATH` (a pipe as stdin, stdout to a
file).
"""

import socket
import subprocess
import sys
import time

kind, command = sys.argv[1], sys.argv[2:]
held = []
if kind == "sockets":
    ours, theirs = socket.socketpair()
    held = [ours]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs)
    theirs.close()
elif kind.startswith("file:"):
    with open(kind.removeprefix("file:"), "wb") as file:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file)
else:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(1000)

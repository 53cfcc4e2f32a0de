"""Prints the name of each of these signals as it comes, until it is killed: trap.py SIGNAL…"""

import os
import signal
import sys

NAMES = sys.argv[1:]
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
for name in NAMES:
    signal.signal(getattr(signal, name), lambda number, frame: None)
os.write(1, b"ready\n")
while numbers := os.read(reader, 64):
    for number in numbers:
        os.write(1, signal.Signals(number).name.encode() + b"\n")

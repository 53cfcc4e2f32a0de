"""Prints the name of each signal it gets; ends with 5 on SIGUSR2 after SIGUSR1, or when stdin ends."""

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

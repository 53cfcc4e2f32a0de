"""Starts a tree of processes that want to outlive it, and says `ready`: tree.py MARK [stay].

MARK is an argument of each. Without `stay` it ends once all of them run.
"""

import os
import subprocess
import sys
import time

MARK = sys.argv[1]
SLEEP = ["python3", "-c", "import os, time; os.write(1, b'.'); time.sleep(1000)", MARK]
quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE}

started = [
    subprocess.Popen(SLEEP, **quiet),
    subprocess.Popen(SLEEP, start_new_session=True, **quiet),
    # double fork: the parent of these is gone at once
    subprocess.Popen(["sh", "-c", '"$@" &', "sh", *SLEEP], **quiet),
    subprocess.Popen(["sh", "-c", 'setsid "$@" &', "sh", *SLEEP], **quiet),
    subprocess.Popen(["env", "-i", "setsid", *[f"/usr/bin/{SLEEP[0]}", *SLEEP[1:]]], **quiet),
    # deaf to what is asked politely
    subprocess.Popen(["sh", "-c", 'trap "" TERM HUP INT; exec "$@"', "sh", *SLEEP], **quiet),
]
if os.getuid() == 0:
    other = ["setpriv", "--reuid=1500", "--regid=1500", "--clear-groups", "--", *SLEEP]
    started.append(subprocess.Popen(other, **quiet))
for one in started:
    assert one.stdout.read(1) == b"."
print("ready", len(started), flush=True)
if "stay" in sys.argv:
    time.sleep(1000)
os._exit(0)

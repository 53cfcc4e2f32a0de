"""Some of the descriptors on a terminal: it never crosses, and all else is as without a cage."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from .cages import CAGEWRAP, GONE_S, read_bytes, seconds_until, wait_until
from .terminals import CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, PROMPT, Terminals, children

# As a shell arranges them; `%s` is the command.
ARRANGEMENTS = {
    "stdin": "%s 2>&1 | cat",
    "stdin and stderr": "%s | cat",
    "stdout": "%s </dev/null 2>err; cat err",
    "stdout and stderr": "echo | %s",
    "stderr": "echo | %s | cat",
}
LOOK = """
import fcntl, os, stat, termios
for fd in (0, 1, 2):
    mode = os.fstat(fd).st_mode
    is_null = os.path.samefile("/dev/null", f"/proc/self/fd/{fd}")
    assert is_null or not stat.S_ISCHR(mode), fd
    assert not os.isatty(fd)
    try:
        fcntl.ioctl(fd, termios.TIOCSTI, b"x")
    except OSError:
        continue
    raise SystemExit("TIOCSTI")
try:
    open("/dev/tty")
except OSError:
    print("nothing of the terminal")
"""
TICK = """
import os, time
while True:
    os.write(2, b"tick\\n")
    time.sleep(0.1)
"""


def arranged(name: str, command: str) -> str:
    """A script that runs a command in the cage with some descriptors on the terminal."""
    return ARRANGEMENTS[name] % f'"$@" {command}'


def each_arrangement() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", ARRANGEMENTS)


# --- nothing of the terminal crosses ------------------------------------------------------------


@each_arrangement()
def test_terminal_does_not_cross(terminals: Terminals, name: str) -> None:
    (terminals.cage.project / "look.py").write_text(LOOK)
    terminal = terminals.script(arranged(name, "python3 look.py"))
    assert terminal.rest() == b"nothing of the terminal\r\n"


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptor", [1, 2])
def test_all_that_is_written_arrives(terminals: Terminals, descriptor: int) -> None:
    rest = "2>/dev/null" if descriptor == 1 else "| cat"
    script = (
        f"head -c 1000000 /dev/zero | tr '\\0' x >&{descriptor}; printf end >&{descriptor}; exit 5"
    )
    (terminals.cage.project / "write.sh").write_text(script)
    terminal = terminals.script(
        f'stty -opost; echo | "$@" sh write.sh {rest}; exit ${{PIPESTATUS[1]}}'
    )
    output = terminal.rest()
    assert (len(output), output[-4:]) == (1000003, b"xend")
    assert terminal.code() == 5


def test_stdout_and_stderr_on_the_terminal_keep_their_order(terminals: Terminals) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do echo $i; echo e$i >&2; done"
    terminal = terminals.script(f"\"$@\" sh -c '{script}' </dev/null")
    assert terminal.rest() == b"".join(b"%d\r\ne%d\r\n" % (i, i) for i in range(1, 9))


def test_typed_lines_arrive_and_ctrl_d_ends_them(terminals: Terminals) -> None:
    terminal = terminals.script('"$@" sh -c "cat; echo over" | cat')
    for line in (b"one", b"two", b"three"):
        terminal.type(line + b"\n")
        terminal.until(line + b"\r\n" + line + b"\r\n")
    terminal.type(CTRL_D)
    assert terminal.rest() == b"over\r\n"


def test_lines_typed_before_the_start_arrive(terminals: Terminals) -> None:
    terminal = terminals.script('stty -echo; "$@" cat | cat')
    terminal.type(b"".join(b"%d\n" % number for number in range(500)) + CTRL_D)
    assert terminal.rest().endswith(b"".join(b"%d\r\n" % number for number in range(490, 500)))


def test_lines_that_the_agent_does_not_read_are_left_to_the_next(terminals: Terminals) -> None:
    """All but the one that is on its way."""
    script = '"$@" sh -c "read -r line; echo agent \\$line; sleep 0.5" | cat; cat'
    terminal = terminals.script(f"stty -echo; {script}")
    terminal.type(b"one\ntwo\nthree\nfour\n")
    terminal.until(b"agent one\r\nthree\r\nfour\r\n")
    terminal.type(CTRL_D)
    assert terminal.code() == 0


def test_terminal_stays_cooked(terminals: Terminals) -> None:
    shell = terminals.shell()
    before = shell.attributes()
    shell.type(b"cage sleep 89 | cat\n")
    assert wait_until(lambda: terminals.cage.inside_programs("89"), 5)
    assert shell.attributes() == before
    shell.type(CTRL_C)
    shell.until(PROMPT)


def test_agent_that_closes_stderr_costs_nothing(terminals: Terminals) -> None:
    """The shim must not spin on its end."""
    terminal = terminals.script(
        'true | "$@" sh -c "exec 2>&-; sleep 0.6; exit 7" | cat; exit ${PIPESTATUS[1]}'
    )
    assert wait_until(lambda: shims(terminal.pid) != [], 5)
    [shim] = shims(terminal.pid)
    used = 0.0
    while ticks := cpu_seconds(shim):
        used = ticks
    assert used < 0.2
    assert terminal.code() == 7


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; 0 for one that is gone."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    ended = not fields or fields[0] == b"Z"
    return 0.0 if ended else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") or 1e-9


def shims(script: int) -> list[int]:
    """The children of a script that have become cagewrap: as a script of Python's, or frozen."""
    argvs = {pid: read_bytes(f"/proc/{pid}/cmdline").split(b"\0") for pid in children(script)}
    program = os.fsencode(CAGEWRAP)
    return [
        pid
        for pid, argv in argvs.items()
        if argv[0] == program or (b"python" in argv[0] and program in argv[:3])
    ]


# --- the end ------------------------------------------------------------------------------------


@each_arrangement()
def test_exit_code_passes(terminals: Terminals, name: str) -> None:
    terminal = terminals.script(
        "set -o pipefail; " + arranged(name, "sh -c 'exit 42'").replace("; cat err", "")
    )
    assert terminal.code() == 42


@each_arrangement()
def test_command_that_is_not_there(terminals: Terminals, name: str) -> None:
    terminal = terminals.script("set -o pipefail; " + arranged(name, "no-such-agent"))
    *_, said, hint, end = terminal.rest().split(b"\r\n")
    assert said.startswith(b"cagewrap: ")
    assert b"no-such-agent" in said
    assert hint.startswith(b"  fix: ")
    assert end == b""


@each_arrangement()
def test_killed_shim_takes_the_tree_along(terminals: Terminals, name: str) -> None:
    script = "'sleep 88 & env -i setsid sleep 88 & sleep 88'"
    terminal = terminals.script(arranged(name, f"sh -c {script}"))
    assert wait_until(lambda: len(terminals.cage.inside_programs("88")) == 3, 5)
    [shim] = shims(terminal.pid)
    assert children(shim) == []
    os.kill(shim, signal.SIGKILL)
    assert seconds_until(lambda: terminals.cage.inside_pids() == [], GONE_S)


@each_arrangement()
def test_closed_window_takes_the_agent_along(terminals: Terminals, name: str) -> None:
    shell = terminals.shell()
    shell.type((ARRANGEMENTS[name] % "cage sh -c 'sleep 87 & sleep 87'").encode() + b"\n")
    assert wait_until(lambda: len(terminals.cage.inside_programs("87")) == 2, 5)
    shell.close()
    assert seconds_until(lambda: terminals.cage.inside_pids() == [], GONE_S)


# --- keys that are signals ----------------------------------------------------------------------


@each_arrangement()
@pytest.mark.parametrize("key", [CTRL_C, CTRL_BACKSLASH], ids=["c", "backslash"])
def test_key_kills_all_of_the_agents_group(terminals: Terminals, name: str, key: bytes) -> None:
    shell = terminals.shell()
    shell.type((ARRANGEMENTS[name] % "cage sh -c 'sleep 86 | sleep 86; echo no'").encode() + b"\n")
    assert wait_until(lambda: len(terminals.cage.inside_programs("86")) == 2, 5)
    shell.type(key)
    shell.until(PROMPT)
    assert wait_until(lambda: terminals.cage.inside_pids() == [], GONE_S)


@each_arrangement()
def test_ctrl_z_and_fg(terminals: Terminals, name: str) -> None:
    shell = terminals.shell()
    # A shell's loop would not do: stopped between vfork and exec it hangs, without a cage too.
    (terminals.cage.project / "tick.py").write_text(TICK)
    loop = "cage python3 tick.py"
    shell.type((ARRANGEMENTS[name].replace("2>err; cat err", "2>&1") % loop).encode() + b"\n")
    shell.until(b"\ntick")
    for _ in range(2):
        shell.type(CTRL_Z)
        assert b"Stopped" in shell.until(PROMPT)
        assert shell.shows_nothing(0.3)
        shell.type(b"fg\n")
        shell.until(b"\ntick")
        shell.until(b"\ntick")
    shell.type(CTRL_C)
    shell.until(PROMPT)


def test_ctrl_z_without_a_shell_to_return_to_stops_nothing(terminals: Terminals) -> None:
    terminal = terminals.script('stty -echo; exec "$@" cat 2>/dev/null')
    terminal.type(b"one\n")
    terminal.until(b"one\r\n")
    terminal.type(CTRL_Z)
    terminal.type(b"two\n")
    terminal.until(b"two\r\n")
    terminal.type(CTRL_D)
    assert terminal.code() == 0


def test_background_job_does_not_take_what_is_typed(terminals: Terminals) -> None:
    shell = terminals.shell()
    shell.type(b"cage sh -c 'sleep 0.4; echo from the $((6 * 7)) background; cat' | cat &\n")
    shell.until(PROMPT)
    shell.until(b"from the 42 background")
    for number in range(5):
        shell.type(b"echo the shell %d\n" % number)
        shell.until(b"\nthe shell %d\r\n" % number + PROMPT)
    shell.type(b"fg\n")
    shell.until(b"| cat\r\n")
    shell.type(b"mine\n")
    shell.until(b"mine\r\nmine\r\n")
    shell.type(CTRL_D)
    shell.until(PROMPT)


# --- the most frequent harness ------------------------------------------------------------------

HARNESS = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
    for number in range(3):
        agent.stdin.write(b"%d\\n" % number)
        agent.stdin.flush()
        print("answer", agent.stdout.readline(), flush=True)
    agent.stdin.close()
    print("code", agent.wait())
"""


def test_harness_that_leaves_stderr_on_the_terminal(terminals: Terminals) -> None:
    agent = 'while read -r line; do echo "got $line"; echo "log $line" >&2; done; exit 6'
    command = [*terminals.cage.command(), "sh", "-c", agent]
    terminal = terminals.program("python3", "-c", HARNESS, *command)
    lines = terminal.rest().split(b"\r\n")
    answers = [line for line in lines if line.startswith(b"answer")]
    assert answers == [b"answer b'got %d\\n'" % number for number in range(3)]
    assert [line for line in lines if line.startswith(b"log")] == [b"log 0", b"log 1", b"log 2"]
    assert lines[-2:] == [b"code 6", b""]


def test_harness_closes_its_end_of_stdout(terminals: Terminals) -> None:
    """Only stderr is relayed: the agent itself has the pipe, and dies by it."""
    terminal = terminals.script('true | "$@" sh -c "while echo x; do sleep 0.01; done" | head -n 1')
    assert terminal.rest() == b"x\r\n"
    assert wait_until(lambda: terminals.cage.inside_pids() == [], GONE_S)


def test_stopped_harness_is_no_terminal(terminals: Terminals) -> None:
    """No terminal at all: SIGTSTP and SIGCONT by a harness still reach the agent."""
    with terminals.cage.popen(
        "sh", "-c", "trap 'echo stop' TSTP; echo ready; while :; do sleep 0.05; done",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTSTP)
        assert process.stdout.readline() == b"stop\n"
        process.terminate()
        assert process.wait(5) == -signal.SIGTERM

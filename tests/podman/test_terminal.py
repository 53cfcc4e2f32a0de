"""All three descriptors on a terminal: the agent has one of its own, and cannot tell."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cages import (
    GONE_S,
    Cage,
    is_alive,
    podman,
    process_state,
    seconds_until,
    wait_until,
)
from .terminals import (
    CTRL_BACKSLASH,
    CTRL_C,
    CTRL_D,
    CTRL_Z,
    PROMPT,
    Terminal,
    Terminals,
    children,
    runs,
)

ECHO = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"ready")
left = int(sys.argv[1])
while left:
    data = os.read(0, 65536)
    left -= len(data)
    while data:
        data = data[os.write(1, data):]
"""


@pytest.fixture
def own(cage: Cage) -> Iterator[Terminals]:
    """Of a cage that the test may break."""
    cage.text("true")
    found = Terminals(cage)
    yield found
    found.remove()


# --- what there is ------------------------------------------------------------------------------


def test_all_three_are_a_terminal_that_controls_the_agent(terminals: Terminals) -> None:
    script = "tty; test -t 0 && test -t 1 && test -t 2 && echo three; echo by name >/dev/tty"
    terminal = terminals.cagewrap("sh", "-c", script)
    assert terminal.rest() == b"/dev/pts/0\r\nthree\r\nby name\r\n"
    assert terminal.code() == 0


def test_nothing_else_is_open(terminals: Terminals) -> None:
    script = (
        "import os; print(sorted(os.listdir('/proc/self/fd')), "
        "dict(os.environ).keys() & {'_', 'cagewrap_go', 'SHLVL'})"
    )
    terminal = terminals.cagewrap("python3", "-c", script)
    assert terminal.rest() == b"['0', '1', '2', '3'] set()\r\n"  # 3 is the listing


def test_size_is_right_from_the_first_instruction(terminals: Terminals) -> None:
    """50 times: the runtime may set it too late."""
    for number in range(50):
        terminal = terminals.cagewrap("stty", "size", size=(20 + number, 100))
        assert terminal.rest() == b"%d 100\r\n" % (20 + number)


def test_resize_reaches_the_agent(terminals: Terminals) -> None:
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    terminal = terminals.cagewrap("sh", "-c", script)
    terminal.until(b"ready")
    for rows in (30, 55):
        terminal.resize(rows, 111)
        terminal.until(b"%d 111\r\n" % rows)
    terminal.type(CTRL_C)
    assert terminal.code() == -signal.SIGINT


def test_attributes_are_those_of_the_outer_terminal(terminals: Terminals) -> None:
    terminal = terminals.script('stty iutf8 ixany -echoctl erase ^H; stty -g; "$@" stty -g')
    outside, inside, _ = (line.split(b":") for line in terminal.rest().split(b"\r\n"))
    speed_and_size = 2  # c_cflag, which two versions of the C library read differently
    del outside[speed_and_size], inside[speed_and_size]
    assert inside == outside


# --- bytes --------------------------------------------------------------------------------------


def echoed(terminals: Terminals, data: bytes) -> bytes:
    terminal = terminals.cagewrap("python3", "-c", ECHO, str(len(data)))
    terminal.until(b"ready")
    terminal.type(data)
    echoed = terminal.rest()
    assert terminal.code() == 0
    return echoed


def test_all_byte_values_pass_both_ways(terminals: Terminals) -> None:
    data = bytes(range(256)) * 64
    assert echoed(terminals, data) == data


def test_paste_of_64_kib_passes(terminals: Terminals) -> None:
    data = b"\x1b[200~" + random.Random(2).randbytes(65536) + b"\x1b[201~"
    assert echoed(terminals, data) == data


def test_paste_that_nobody_reads_does_not_stop_the_output(terminals: Terminals) -> None:
    """The agent writes until the paste is in, and only then reads."""
    script = ECHO.replace("left = ", "os.write(1, b'x' * 300000); left = ")
    terminal = terminals.cagewrap("python3", "-c", script, "100000")
    terminal.until(b"ready")
    terminal.type(b"y" * 100000)
    assert terminal.rest() == b"x" * 300000 + b"y" * 100000


def test_no_key_is_held_or_detaches(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("python3", "-c", ECHO, "3")
    terminal.until(b"ready")
    for key in (b"\x10", b"\x11", b"\x10"):
        terminal.type(key)
        terminal.until(key, within_s=2)
    assert terminal.code() == 0


def test_what_is_typed_before_the_start_is_kept(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("cat")
    terminal.type(b"early\n")
    terminal.until(b"early\r\nearly\r\n")
    terminal.type(CTRL_D)
    assert terminal.code() == 0


def test_ctrl_d_before_the_start_is_kept(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("sh", "-c", "cat; echo and; cat")
    terminal.type(b"early\n" + CTRL_D + b"late\n" + CTRL_D)
    assert terminal.rest().endswith(b"early\r\nand\r\nlate\r\n")


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 5, 130, 255])
def test_exit_code_passes(terminals: Terminals, code: int) -> None:
    assert terminals.cagewrap("sh", "-c", f"exit {code}").code() == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP])
def test_death_by_signal_passes(terminals: Terminals, number: signal.Signals) -> None:
    terminal = terminals.cagewrap("sh", "-c", f"kill -{number.value} $$; sleep 9")
    assert terminal.code() == -number


def test_3_mb_before_the_exit_are_not_lost(terminals: Terminals) -> None:
    script = "stty -opost; head -c 3000000 /dev/zero | tr '\\0' x; printf end; exit 5"
    terminal = terminals.cagewrap("sh", "-c", script)
    output = terminal.rest()
    assert (len(output), output[-4:]) == (3000003, b"xend")
    assert terminal.code() == 5


@pytest.mark.parametrize("number", range(20))
def test_last_line_is_not_lost(terminals: Terminals, number: int) -> None:
    assert terminals.cagewrap("sh", "-c", "echo the last").rest() == b"the last\r\n"


def test_end_does_not_wait_for_what_the_agent_left_running(terminals: Terminals) -> None:
    script = "(trap '' HUP; sleep 1.5; echo late) & yes | head -n 1000; echo last; exit 4"
    terminal = terminals.cagewrap("sh", "-c", script)
    assert seconds_until(lambda: not terminal.shows_nothing(0) and not is_alive(terminal.pid), 1.2)
    assert terminal.rest().endswith(b"y\r\nlast\r\n")
    assert terminal.code() == 4
    wait_until(lambda: terminals.cage.inside_pids() == [], 3)


# --- keys that are signals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "number"), [(CTRL_C, signal.SIGINT), (CTRL_BACKSLASH, signal.SIGQUIT)], ids=["c", "\\"]
)
def test_key_kills_the_agent_and_all_of_its_group(
    terminals: Terminals, key: bytes, number: int
) -> None:
    terminal = terminals.cagewrap("sh", "-c", "sleep 97 & echo ready; sleep 98; echo no")
    terminal.until(b"ready")
    assert wait_until(lambda: terminals.cage.inside_programs("98"), 2)
    terminal.type(key)
    assert terminal.code() == -number
    assert b"no\r\n" not in terminal.rest()


def test_ctrl_c_that_is_handled(terminals: Terminals) -> None:
    terminal = terminals.cagewrap(
        "sh", "-c", "trap 'exit 130' INT; echo ready; while :; do sleep 0.1; done"
    )
    terminal.until(b"ready")
    terminal.type(CTRL_C)
    assert terminal.code() == 130


def test_ctrl_d_is_the_end_of_input(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("cat")
    assert runs(terminals.cage, "cat")
    terminal.type(b"a line\n")
    terminal.until(b"a line\r\na line\r\n")
    terminal.type(CTRL_D)
    assert terminal.code() == 0


def test_jobs_of_a_shell_inside(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("bash", "--norc", "--noprofile", "--noediting", "-i")
    terminal.type(b"PS1='PROMPT''> '\n")
    terminal.until(PROMPT)
    terminal.type(b"sleep 96\n")
    assert wait_until(lambda: terminals.cage.inside_programs("96"), 5)
    terminal.type(CTRL_Z)
    assert b"Stopped" in terminal.until(PROMPT)
    terminal.type(b"fg\n")
    terminal.until(b"sleep 96\r\n")
    [job] = terminals.cage.inside_programs("96")
    assert wait_until(lambda: process_state(job) == "S", 5)
    terminal.type(CTRL_C)
    terminal.until(PROMPT)
    terminal.type(b"echo $?\n")
    terminal.until(b"130\r\n")
    terminal.type(b"exit 3\n")
    assert terminal.code() == 3


def test_ctrl_z_and_fg_of_the_agent_itself(terminals: Terminals) -> None:
    shell = terminals.shell()
    before = shell.attributes()
    for _ in range(2):
        shell.type(b"cage cat\n")
        assert runs(terminals.cage, "cat")
        shell.type(b"one\n")
        shell.until(b"one\r\none\r\n")
        shell.type(CTRL_Z)
        assert b"Stopped" in shell.until(PROMPT)
        assert shell.attributes() == before
        shell.type(b"echo the shell $((40 + 2))\n")
        shell.until(b"the shell 42\r\n" + PROMPT)
        shell.type(b"fg\n")
        shell.until(b'"$@"\r\n')
        shell.type(b"two\n")
        shell.until(b"two\r\ntwo\r\n")
        shell.type(CTRL_D)
        shell.until(PROMPT)
        assert shell.attributes() == before
    shell.type(b"exit\n")
    assert shell.code() == 0


def test_ctrl_z_that_the_agent_handles_is_its_own_affair(terminals: Terminals) -> None:
    shell = terminals.shell()
    shell.type(
        b"cage sh -c 'trap \"echo handled\" TSTP; echo ready; while :; do sleep 0.1; done'\n"
    )
    shell.until(b"\nready")
    shell.type(CTRL_Z)
    shell.until(b"handled")
    assert b"handled" not in shell.seen
    shell.type(CTRL_C)
    assert b"Stopped" not in shell.until(PROMPT)


def test_ctrl_z_of_a_script_gives_the_prompt_back(terminals: Terminals) -> None:
    shell = terminals.shell()
    shell.type(b"(cage cat; echo after)\n")
    assert runs(terminals.cage, "cat")
    shell.type(b"one\n")
    shell.until(b"one\r\none\r\n")
    shell.type(CTRL_Z)
    assert b"Stopped" in shell.until(PROMPT)
    shell.type(b"fg\n")
    shell.type(b"two\n")
    shell.until(b"two\r\ntwo\r\n")
    shell.type(CTRL_D)
    shell.until(b"after\r\n" + PROMPT)


def test_agent_that_stops_itself(terminals: Terminals) -> None:
    shell = terminals.shell()
    shell.type(b"cage sh -c 'kill -STOP $$; echo goes on'\n")
    assert b"Stopped" in shell.until(PROMPT)
    shell.type(b"fg\n")
    shell.until(b"goes on\r\n" + PROMPT)


def test_ctrl_z_without_a_shell_to_return_to_stops_nothing(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("cat")
    assert runs(terminals.cage, "cat")
    terminal.type(b"one\n")
    terminal.until(b"one\r\none\r\n")
    terminal.type(CTRL_Z)
    terminal.until(b"^Z")
    terminal.type(b"two\n")
    terminal.until(b"two\r\ntwo\r\n")
    terminal.type(CTRL_D)
    assert terminal.code() == 0


def test_started_in_the_background_it_leaves_the_terminal_to_the_shell(
    terminals: Terminals,
) -> None:
    shell = terminals.shell()
    before = shell.attributes()
    shell.type(b"cage sh -c 'sleep 0.5; echo from the $((6 * 7)) background; cat' &\n")
    shell.until(PROMPT)
    shell.until(b"from the 42 background")
    assert shell.attributes() == before
    shell.type(b"echo the shell $((40 + 2))\n")
    shell.until(b"the shell 42\r\n" + PROMPT)
    shell.type(b"fg\n")
    shell.until(b"cat'\r\n")
    assert wait_until(lambda: shell.attributes() != before, 3)
    shell.type(b"mine\n")
    shell.until(b"mine\r\nmine\r\n")
    shell.type(CTRL_D)
    shell.until(PROMPT)
    assert shell.attributes() == before


# --- the terminal afterwards --------------------------------------------------------------------


def reading(terminals: Terminals) -> tuple[Terminal, list[object]]:
    """An agent that reads, and the terminal's attributes from before it came."""
    terminal = terminals.script(
        'echo go; read -r _; "$@" cat; code=$?; stty -a >/dev/null; exit $code'
    )
    terminal.until(b"go")
    before = terminal.attributes()
    terminal.type(b"\n")
    terminal.until(b"\n")
    assert wait_until(lambda: terminal.attributes() != before, 10)
    assert runs(terminals.cage, "cat")
    return terminal, before


def shim_of(terminal: Terminal) -> int:
    [pid] = children(terminal.pid)
    return pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_terminal_is_given_back_after_a_signal(terminals: Terminals, number: int) -> None:
    terminal, before = reading(terminals)
    os.kill(shim_of(terminal), number)
    assert terminal.code() in (128 + number, -number)
    assert terminal.attributes() == before


def test_terminal_is_given_back_after_the_end(terminals: Terminals) -> None:
    terminal, before = reading(terminals)
    terminal.type(CTRL_D)
    assert terminal.code() == 0
    assert terminal.attributes() == before


def test_terminal_is_given_back_when_the_agent_is_killed(terminals: Terminals) -> None:
    terminal, before = reading(terminals)
    os.kill(terminals.cage.inside_programs("cat")[0], signal.SIGKILL)
    assert terminal.code() == 128 + signal.SIGKILL
    assert terminal.attributes() == before


def test_terminal_is_given_back_when_the_keeper_is_killed(own: Terminals) -> None:
    terminal, before = reading(own)
    [agent] = own.cage.inside_programs("cat")
    os.kill(own.cage.keeper(), signal.SIGKILL)
    assert terminal.code() == 121
    assert b"cagewrap: The cage's keeper was killed while the agent ran" in terminal.rest()
    assert terminal.attributes() == before
    assert not is_alive(agent)
    own.cage.text("true")


def test_terminal_is_given_back_when_the_container_is_killed(own: Terminals) -> None:
    terminal, before = reading(own)
    os.kill(own.cage.init(), signal.SIGKILL)
    assert terminal.code() == 128 + signal.SIGKILL
    text = terminal.rest()
    assert b"\r\n" not in text.replace(b"\r\n", b"", text.count(b"\r\n"))
    assert terminal.attributes() == before


# --- the shim gone ------------------------------------------------------------------------------

TREE = """
sleep 91 &
(trap '' HUP TERM; sleep 92; sleep 92) &
env -i setsid sleep 93 &
echo ready
sleep 94
"""


def tree(terminals: Terminals) -> Terminal:
    terminal = terminals.cagewrap("sh", "-c", TREE)
    terminal.until(b"ready")
    assert wait_until(lambda: len(terminals.cage.inside_pids()) >= 5, 5)
    return terminal


def test_killed_shim_takes_the_whole_tree_along(terminals: Terminals) -> None:
    terminal = tree(terminals)
    os.kill(terminal.pid, signal.SIGKILL)
    assert seconds_until(lambda: terminals.cage.inside_pids() == [], GONE_S)


def test_closed_window_takes_the_whole_tree_along(terminals: Terminals) -> None:
    terminal = tree(terminals)
    terminal.close()
    assert seconds_until(lambda: terminals.cage.inside_pids() == [], GONE_S)
    assert terminal.code() == -signal.SIGHUP


def test_closed_window_of_a_shell_takes_its_jobs_along(terminals: Terminals) -> None:
    shell = terminals.shell()
    shell.type(b"cage sleep 95\n")
    assert wait_until(lambda: terminals.cage.inside_programs("95"), 5)
    shell.close()
    assert seconds_until(lambda: terminals.cage.inside_pids() == [], GONE_S)


def test_shim_has_no_children(terminals: Terminals) -> None:
    terminal = terminals.cagewrap("sleep", "90")
    assert wait_until(lambda: terminals.cage.inside_programs("90"), 5)
    assert children(terminal.pid) == []
    terminal.type(CTRL_C)
    assert terminal.code() == -signal.SIGINT


# --- errors -------------------------------------------------------------------------------------


def test_command_that_is_not_there(terminals: Terminals) -> None:
    terminal, before = with_error(terminals, '"$@" no-such-agent')
    assert terminal.code() == 127
    lines = terminal.rest().split(b"\r\n")
    assert lines[0].startswith(b"cagewrap: ")
    assert b"no-such-agent" in lines[0]
    assert lines[1].startswith(b"  fix: ")
    assert lines[2:] == [b""]
    assert terminal.attributes() == before


def test_image_that_is_not_there(make_cage: Callable[..., Cage]) -> None:
    terminals = Terminals(make_cage("--image", "localhost/nothing"))
    terminal, before = with_error(terminals, '"$@" true')
    assert terminal.code() == 118
    first, second, end = terminal.rest().split(b"\r\n")
    assert first.startswith(b"cagewrap: The image localhost/nothing")
    assert second.startswith(b"  fix: ")
    assert end == b""
    assert terminal.attributes() == before


def with_error(terminals: Terminals, command: str) -> tuple[Terminal, list[object]]:
    terminal = terminals.script(f"echo go; read -r _; {command}; code=$?; sleep 0.1; exit $code")
    terminal.until(b"go\r\n")
    before = terminal.attributes()
    terminal.type(b"\n")
    terminal.until(b"\r\n")
    return terminal, before


def test_image_without_a_shell(make_cage: Callable[..., Cage], tmp_path: Path) -> None:
    """Nothing of the image is needed: this one holds one static program."""
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as file:
        file.add("/usr/bin/catatonit", "agent")
    image = "localhost/cagewrap-no-shell:latest"
    subprocess.run(["podman", "import", "--quiet", archive, image], check=True, capture_output=True)
    try:
        cage = make_cage("--image", image)
        terminal = Terminals(cage).cagewrap("/agent", "-V")
        assert terminal.rest().startswith(b"tini version")
        assert terminal.code() == 0
        terminal = Terminals(cage).cagewrap("no-such-agent")
        assert terminal.code() == 127
        cage.remove()
    finally:
        podman("rmi", "--force", image)

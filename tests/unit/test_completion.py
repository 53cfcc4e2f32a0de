"""The command line is completed in a real bash, by what cagewrap prints for it."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ptyprocess import PtyProcess

import cagewrap
from cagewrap import sessions
from cagewrap.cli import VERBS
from cagewrap.cli.completion import SHELLS
from cagewrap.flags import FLAGS
from cagewrap.paths import paths_from_env
from cagewrap.sessions import Record

SOURCE = Path(cagewrap.__file__).parent.parent
ALL, TAB, TELL = "\x1b*", "\t", "\x07"
"""Keys of readline: put in all completions; complete; (ours) write down what the line is."""

RC = """
PS1=
eval "$(cagewrap completion bash)"
tell() {{ printf "%s" "$READLINE_LINE" >{out}.new; mv {out}.new {out}; }}
bind -x '"\\C-g": tell'
"""


def record(name: str, session: str) -> Record:
    return Record(
        name=name, project="/w/p", session=session, created_at=0.0, image="i", runtime="crun",
        identity="root", network="none", config_hash="", home="/h", run_args=(),
    )  # fmt: skip


@pytest.fixture
def env(tmp_path):
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    program = tmp_path / "bin/cagewrap"
    program.parent.mkdir()
    path = os.pathsep.join([str(SOURCE), *sys.path])
    code = "import sys; from cagewrap.entry import main; sys.argv[0] = 'cagewrap'; main()"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {sys.executable} -c "{code}" "$@"\n'
    )
    program.chmod(0o755)
    link = Path(os.path.realpath("/tmp")) / f"cagewrap-completion-{os.getpid()}"
    link.symlink_to(runtime)  # a runtime directory's path is short
    env = {
        "HOME": str(tmp_path), "PATH": f"{program.parent}:/usr/bin:/bin",
        "XDG_RUNTIME_DIR": str(link), "TERM": "dumb", "LC_ALL": "C.UTF-8", "INPUTRC": "/dev/null",
    }  # fmt: skip
    paths = paths_from_env(env, os.getuid())
    sessions.make_directories(paths)
    for name, session in (
        ("cagewrap-p-1", "alpha one"),
        ("cagewrap-p-2", ""),
        ("cagewrap-q-3", "it's"),
    ):
        sessions.make_private(paths.cage_dir(name))
        sessions.write_record(paths, record(name, session))
    yield env
    link.unlink()


class Bash:
    """One that a person has opened in a directory."""

    def __init__(self, directory, env):
        self.out = directory.parent / "line"
        rc = directory.parent / "bashrc"
        rc.write_text(RC.format(out=shlex.quote(str(self.out))))
        argv = ["bash", "--noprofile", "--rcfile", str(rc), "-i"]
        self.process = PtyProcess.spawn(argv, cwd=str(directory), env=env)

    def write(self, text):
        self.process.write(text.encode())

    def line_after(self, keys):
        """What stands on the command line after some keys."""
        self.out.unlink(missing_ok=True)
        self.write(keys + TELL)
        deadline = time.monotonic() + 60
        while not self.out.exists():
            assert time.monotonic() < deadline, self.process.read(10000)
            time.sleep(0.02)
        line = self.out.read_text()
        self.write("\x15")  # ctrl-u
        return line

    def completions(self, words):
        return shlex.split(self.line_after(words + ALL))[
            len(shlex.split(words)) - (words[-1] != " ") :
        ]


@pytest.fixture
def bash(tmp_path, env):
    directory = tmp_path / "here"
    (directory / "some directory").mkdir(parents=True)
    (directory / "some file").touch()
    shell = Bash(directory, env)
    yield shell
    shell.process.close(force=True)


def test_in_bash(bash):
    verbs = bash.completions("cagewrap ")
    assert verbs == sorted(VERBS)
    assert bash.line_after("cagewrap take" + TAB) == "cagewrap take-back "
    assert bash.completions("cagewrap --") == sorted(
        [*(row.flag for row in FLAGS), "--version", "--help"]
    )
    assert bash.completions("cagewrap --network ") == ["none", "open"]
    assert bash.line_after("cagewrap --network=n" + TAB) == "cagewrap --network=none "
    assert bash.line_after("cagewrap --rm --im" + TAB) == "cagewrap --rm --image "


def test_sessions_in_bash(bash):
    names = ["alpha one", "cagewrap-p-1", "cagewrap-p-2", "cagewrap-q-3", "it's"]
    for verb in ("stop", "rm", "recreate", "logs", "shell", "port", "review", "image from-session"):
        assert bash.completions(f"cagewrap {verb} ") == names, verb
    assert bash.line_after("cagewrap rm al" + TAB) == "cagewrap rm alpha\\ one "
    assert bash.completions("cagewrap --session ") == ["alpha one", "it's"]


def test_files_and_commands_in_bash(bash):
    assert bash.line_after("cagewrap --project so" + TAB) == "cagewrap --project some\\ directory/"
    assert bash.completions("cagewrap shim claude -o s") == ["some directory", "some file"]
    assert bash.line_after("cagewrap --rm -- mktem" + TAB) == "cagewrap --rm -- mktemp "
    assert bash.line_after("cagewrap -- cat some\\ f" + TAB) == "cagewrap -- cat some\\ file "
    assert bash.completions("cagewrap shim c") == [
        "claude", "claude-agent-acp", "claude-code-acp", "codex", "codex-acp",
    ]  # fmt: skip
    assert "--session-env" in bash.completions("cagewrap shim claude --")


def run(env, *words):
    return subprocess.run(
        ["cagewrap", "completion", *words], env=env, capture_output=True, text=True, check=False
    )


def test_the_answers_are_lines_of_three(env):
    done = run(env, "fish", "--", "rm", "")
    assert done.stdout.splitlines() == [
        "plain\tcagewrap-p-1\t/w/p", "plain\talpha one\t/w/p", "plain\tcagewrap-p-2\t/w/p",
        "plain\tcagewrap-q-3\t/w/p", "plain\tit's\t/w/p",
    ]  # fmt: skip
    help_ = run(env, "zsh", "--", "").stdout
    assert all(re.match(r"plain\t[a-z-]+\t\S", line) for line in help_.splitlines())
    assert run(env, "bash", "--", "no-such-verb", "").stdout == ""
    assert run(env, "tcsh").returncode == 110


def test_nothing_is_said_where_nothing_can_be_known(env):
    done = run(env | {"XDG_RUNTIME_DIR": "/nowhere"}, "bash", "--", "rm", "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_ask_for_their_own_shell(env, shell):
    assert f"cagewrap completion {shell} -- " in run(env, shell).stdout

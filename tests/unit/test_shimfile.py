"""Shim files: what is in them, where they may be, and that none is taken for an agent."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import cagewrap
from cagewrap import agentnames, entry, shimfile
from cagewrap.cli.shim import own_program, split_flags
from cagewrap.errors import UnsupportedError, UsageError
from cagewrap.hostclaude import find_claude, find_ours, is_claude
from cagewrap.launcher import launcher_text
from cagewrap.ourselves import is_ours, is_shim_file
from cagewrap.programs import Finder

SOURCE = str(Path(cagewrap.__file__).parent.parent)
NASTY = [
    "",
    " ",
    "a b",
    "a\nb",
    "'",
    '"',
    "\\",
    "`id`",
    "$HOME",
    "*",
    "--",
    "#",
    "\udcff",
    "ü",
    "'\n'#",
]


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o755)
    return path


@pytest.fixture
def told(tmp_path):
    """A program that tells its arguments, at a path that a shell would take apart."""
    path = tmp_path / 'it\'s\na $(touch x) `y` "cage" wrap'
    text = f"#!{sys.executable}\nimport sys; print(ascii(sys.argv[1:]))\n"
    return program(path, text)


def shim(path, told, agent="claude", flags=(), force=False):
    content = shimfile.shim_text(str(told), agent, flags)
    shimfile.write_shim(str(path), content, program=str(told), force=force)
    return path


# -- what is in them -------------------------------------------------------------------------------


def test_every_word_arrives(tmp_path, told):
    path = shim(tmp_path / "shim", told, NASTY[3], NASTY[4:])
    done = subprocess.run([path, *map(os.fsencode, NASTY)], capture_output=True, check=True)
    assert done.stdout.decode() == f"{['--as', *NASTY[3:], '--', *NASTY]!a}\n"
    assert done.stderr == b""
    assert sorted(tmp_path.iterdir()) == sorted([path, told])


def test_a_file_whose_cagewrap_is_gone_says_so_in_one_line(tmp_path):
    gone = tmp_path / "a %s\\n b"
    path = shim(tmp_path / "shim", gone)
    for mode in (None, 0o644):
        if mode is not None:
            gone.touch(mode)
        done = subprocess.run([path, "-p"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (127, "", 1)
        assert done.stderr.startswith(f"cagewrap: {gone} is not there, and {path} ")


def test_the_words_that_the_entry_knows_are_these():
    source = Path(entry.__file__).read_text()
    assert f'flags[:1] == ["{agentnames.AS}"]' in source
    assert f'os.environ.get("{agentnames.ON_HOST}"' in source
    asks = {word for words in agentnames.ASK_VERSION.values() for word in words}
    assert all(f'"{word}"' in source for word in asks)
    assert set(agentnames.ASK_VERSION) <= set(agentnames.AGENTS)


# -- where they may be -----------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_everyone_may_execute_it(tmp_path, told, umask):
    before = os.umask(umask)
    try:
        path = shim(tmp_path / "shim", told)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o755


def test_a_shim_takes_the_place_of_a_shim_alone(tmp_path, told):
    path = shim(tmp_path / "shim", told)
    with path.open("rb") as held:
        shim(path, told, "codex")
        assert b"codex" not in held.read()  # who runs the old one has it whole
    assert b"codex" in path.read_bytes()
    other = program(tmp_path / "other", "#!/bin/sh\nexec cagewrap -- claude\n")
    link = tmp_path / "link"
    link.symlink_to(other)
    for taken in (other, link):
        with pytest.raises(UsageError, match="is there already") as caught:
            shim(taken, told)
        assert "--force" in caught.value.hint
        assert other.read_text() == "#!/bin/sh\nexec cagewrap -- claude\n"
    shim(link, told, force=True)
    assert not link.is_symlink()
    assert "exec cagewrap -- claude" in other.read_text()
    shim(other, told, force=True)
    assert is_shim_file(str(other))


def test_refuses_what_is_no_place_for_a_file(tmp_path, told):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-directory").symlink_to(tmp_path)
    program(tmp_path / "file", "")
    cases = {
        tmp_path: "is a directory",
        tmp_path / "fifo": "no regular file",
        tmp_path / "none/shim": "No such file",
        tmp_path / "file/shim": "Not a directory",
        tmp_path / ("x" * 256): "File name too long",
    }
    for place, why in cases.items():
        with pytest.raises(UsageError, match=why) as caught:
            shim(place, told, force=True)
        assert caught.value.hint
    assert not list(tmp_path.glob(".cagewrap-shim*"))


def test_refuses_to_make_cagewrap_a_shim_of_itself(tmp_path, told):
    link = tmp_path / "cagewrap"
    link.symlink_to(told)
    content = shimfile.shim_text(str(link), "claude", ())
    for place in (link, told):
        with pytest.raises(UsageError, match="is cagewrap itself"):
            shimfile.write_shim(str(place), content, program=str(link), force=True)
    assert link.is_symlink()


def test_refuses_a_place_where_agents_write(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "bin").symlink_to(project)
    for place in (project / "shim", project / "no/shim", tmp_path / "bin/shim"):
        with pytest.raises(UnsupportedError, match="where an agent can write"):
            shimfile.refuse_agents_place(str(place), {str(project)})
    shimfile.refuse_agents_place(str(tmp_path / "project-2"), {str(project)})


# -- the command -----------------------------------------------------------------------------------


def test_flags_stand_anywhere():
    words = ["--image", "-o", "claude", "--rm", "-o", "--image", "--env=A=b", "--force", "--json"]
    assert split_flags(words) == (
        ["--image", "-o", "--rm", "--env=A=b"],
        ["claude", "-o", "--image", "--force", "--json"],
    )
    assert split_flags(["claude", "--image"]) == (["--image"], ["claude"])


@pytest.fixture
def launcher(tmp_path):
    return program(tmp_path / "bin/cagewrap", launcher_text(sys.executable, f"{SOURCE}/cagewrap"))


@pytest.fixture
def runtime_dir():
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # short enough for a socket's name
        yield path


@pytest.fixture
def call(tmp_path, launcher, runtime_dir):
    env = {
        "HOME": str(tmp_path), "XDG_RUNTIME_DIR": runtime_dir, "PATH": f"{launcher.parent}:/bin",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip

    def run(*words, program=launcher, **more):
        # The launcher's -IS has no packages: click is this test's own.
        argv = [sys.executable, "-c", PRELUDE, program, *words]
        return subprocess.run(
            argv, env=env | more, capture_output=True, text=True, check=False, cwd=tmp_path
        )

    return run


PRELUDE = "import sys; del sys.argv[0]; from cagewrap.entry import main; main()"


def test_the_file_goes_to_stdout_or_to_its_place(tmp_path, call, launcher):
    shown = call("shim", "claude", "--session-env", "WHO", "--image=a b")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"program={launcher}\n" in shown.stdout
    assert "--as claude --session-env WHO '--image=a b' -- " in shown.stdout
    for where in ("./shim", str(tmp_path / "shim")):
        done = call("shim", "claude", "--session-env", "WHO", "--image=a b", "-o", where)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (tmp_path / "shim").read_text() == shown.stdout
    found = json.loads(call("shim", "claude", "--json", "-o", "shim").stdout)
    assert found["ok"]
    assert found["shim"]["path"] == str(tmp_path / "shim")
    assert found["shim"]["text"] == (tmp_path / "shim").read_text()


def test_agents_that_can_be_named(tmp_path, call):
    assert call("shim", "claud").returncode == 110
    assert "did you mean claude?" in call("shim", "claud").stderr
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/cagewrap.toml").write_text(
        '[project."/p".agents.mine]\nprogram = "image"\n'
    )
    assert call("shim", "mine").returncode == 0
    assert call("shim", "/opt/any thing").returncode == 0
    assert f"cagewrap shim {tmp_path}/bin/x" in call("shim", "bin/x").stderr


def test_refuses_what_would_fail_at_every_message(call, launcher):
    for words in (
        ["claude", "--image"], ["claude", "--network", "some"], ["claude", "--nothing"], [],
        ["claude", "--dry-run"], ["claude", "--podman-arg", "--"], ["claude", "codex"],
        [str(launcher)], ["claude", "-o"],
    ):  # fmt: skip
        done = call("shim", *words)
        assert (done.returncode, done.stdout) == (110, ""), words
        assert done.stderr.startswith("cagewrap: ")


def test_which_cagewrap_a_shim_runs(tmp_path, launcher, monkeypatch):
    path = {"PATH": f"/nowhere:{launcher.parent}"}
    link = tmp_path / "to-it"
    link.symlink_to(launcher)
    assert own_program(str(link), path) == str(link)  # and not where it leads now
    assert own_program("cagewrap", path) == str(launcher)
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    assert own_program("/x/cagewrap/__main__.py", path) == str(launcher)
    assert own_program("-c", path) == str(launcher)
    assert own_program(str(link), {"CAGEWRAP_PROGRAM": str(launcher)}) == str(launcher)
    monkeypatch.chdir(tmp_path)
    assert own_program("./to-it", path) == str(link)
    with pytest.raises(UsageError):
        own_program("cagewrap", {"PATH": "/nowhere"})


# -- argv[0] ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("letters", ["plain", "with space"])
def test_a_symlink_says_whose_it_is(tmp_path, letters):
    """Also where the program is a script of sh's, because the kernel cannot start it."""
    python = tmp_path / letters / "python3"
    python.parent.mkdir()
    python.symlink_to(Path(sys.base_prefix) / "bin/python3")
    package = tmp_path / letters / "site/cagewrap"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(entry.__file__, package)
    for name in ("errors.py", "agentnames.py"):
        shutil.copy(f"{SOURCE}/cagewrap/{name}", package)
    (package / "wrap.py").write_text("def wrap(*words): print(ascii(words))\n")
    launcher = program(tmp_path / letters / "cagewrap", launcher_text(str(python), str(package)))
    for name in ("claude", "pi", "codex-acp"):
        link = tmp_path / name
        link.symlink_to(launcher)
        done = subprocess.run(
            [link, "--image", "--", ""], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{([], [name, '--image', '--', ''])!a}\n"
    other = tmp_path / "cw"
    other.symlink_to(launcher)
    for called in (other, launcher):
        done = subprocess.run(
            [called, "--rm", "--", "x"], capture_output=True, text=True, check=True
        )
        assert done.stdout == "(['--rm'], ['x'])\n"


def test_a_name_of_its_own_costs_no_import(tmp_path):
    head = f"import sys; sys.path.insert(0, {SOURCE!r}); sys.argv = ['/x/cagewrap']"
    code = f"{head}; from cagewrap import entry; entry._as_called(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-ISc", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "cagewrap.agentnames" not in done.stdout.split()
    assert "cagewrap.errors" in done.stdout.split()


# -- none is an agent ------------------------------------------------------------------------------


def ours(directory, told, launcher):
    """Every way in which cagewrap may stand under an agent's name."""
    yield shim(directory / "shim", told, flags=("--mount", "x" * 5000))
    for name, target in (("link", launcher), ("link-to-link", directory / "link")):
        (directory / name).symlink_to(target)
        yield directory / name
    yield program(directory / "copy", launcher.read_bytes())
    yield program(directory / "in-sh", launcher_text("/a path/python3", f"{SOURCE}/cagewrap"))
    pip = "#!/v/bin/python\nimport sys\nfrom cagewrap.entry import main\nsys.exit(main())\n"
    yield program(directory / "pips", pip)
    yield program(directory / "by-hand", '#!/bin/sh\nexec ~/bin/cagewrap --rm -- claude "$@"\n')
    frozen = directory / "cagewrap-1.0"
    (frozen / "_internal/cagewrap").mkdir(parents=True)
    shutil.copy("/bin/true", frozen / "cagewrap")
    os.link(frozen / "cagewrap", frozen / "claude")
    (directory / "to-frozen").symlink_to(frozen / "cagewrap")
    yield frozen / "claude"
    yield directory / "to-frozen"


def test_nothing_of_ours_is_taken_for_an_agent(tmp_path, told, launcher):
    directory = tmp_path / "ours"
    directory.mkdir()
    for path in ours(directory, told, launcher):
        assert is_ours(str(path)), path
        assert not is_claude(str(path)), path
        for is_told in (False, True):
            finder = Finder(str(tmp_path), "", lambda _: "", lambda _: "")
            assert finder.examine(str(path), "claude", is_told=is_told) is None
            assert finder.notes == [f"{path} is not used: it runs cagewrap itself"]
        named = tmp_path / "named" / path.name
        named.mkdir(parents=True)
        (named / "claude").symlink_to(path)
        home = str(tmp_path / "home")
        assert find_claude(str(named), home) == ""
        assert find_claude("", home, told=str(path)) == ""
        assert find_ours(str(named), home) == [str(named / "claude")]
        assert find_ours("", home, told=str(path)) == [str(path)]


def test_what_is_an_agent_is_not_ours(tmp_path):
    for path in (
        program(tmp_path / "node", "#!/usr/bin/env node\n"),
        program(tmp_path / "said", "#!/bin/sh\n# not of mycagewrapper\nexec /opt/claude\n"),
        program(tmp_path / "text", "exec cagewrap -- claude\n"),
        Path("/bin/true"),
        tmp_path,
        tmp_path / "nothing",
        Path("/dev/null"),
    ):
        assert not is_ours(str(path)), path


def test_shlex_is_for_any_shell():
    """Quoted text has no byte in it that a shell reads, apart from quotes."""
    assert shlex.quote("a'\n$") == "'a'\"'\"'\n$'"

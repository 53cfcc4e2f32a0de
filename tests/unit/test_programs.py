"""An agent's program on this machine: what is found, and what of the machine goes along."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from cagewrap.elf import Elf, Script, read_program_at
from cagewrap.libraries import find_libraries, is_self_contained
from cagewrap.programs import AGENTS, Finder, candidates
from cagewrap.waypoints import leads_through

LS = os.path.realpath("/bin/ls")
MACHINE = os.uname().machine


@pytest.fixture
def home(tmp_path):
    return tmp_path


def finder(home, path="", judge=lambda _: "", machine="", follow=lambda _: ""):
    return Finder(str(home), path, judge, follow, machine)


def not_through(*places):
    """A `follow` for agents that write in these places."""
    return lambda path: leads_through(path, [str(place) for place in places])


def program(path, text=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        shutil.copy(LS, path)
    else:
        path.write_text(text)
    path.chmod(0o755)
    return path


# -- what a file is --------------------------------------------------------------------------------


def test_a_program_of_this_machine():
    found = read_program_at(LS, libraries=True)
    assert isinstance(found, Elf)
    assert found.machine == MACHINE
    assert os.path.isfile(found.loader)
    assert "libc.so.6" in found.needed
    assert found.runs_on(MACHINE)
    assert not found.runs_on("s390x")


@pytest.mark.parametrize(
    ("text", "wanted", "interpreter"),
    [
        ("#!/usr/bin/env node\n", "node", "/usr/bin/env"),
        ("#! /bin/sh -eu\n", "/bin/sh", "/bin/sh"),
        ("#!/usr/bin/env -S A=1 python3 -u\n", "python3", "/usr/bin/env"),
        ("#!/usr/bin/env\n", "/usr/bin/env", "/usr/bin/env"),
        ("#!/usr/bin/env -S -u NAME node\n", "/usr/bin/env", "/usr/bin/env"),
        ("#!/usr/bin/env -S -C /tmp node\n", "/usr/bin/env", "/usr/bin/env"),
        ("#!/usr/bin/env -S 'node x'\n", "/usr/bin/env", "/usr/bin/env"),
        ("#!\t/opt/x\ty\n", "/opt/x", "/opt/x"),
    ],
)
def test_a_script(tmp_path, text, wanted, interpreter):
    found = read_program_at(str(program(tmp_path / "s", text)))
    assert isinstance(found, Script)
    assert (found.wanted, found.interpreter) == (wanted, interpreter)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"#!", b"#!\n", b"text", b"\x7fELF", b"\x7fELF\2\1" + b"\xff" * 58,
        b"\x7fELF\2\1" + bytes(26) + struct.pack("<Q", 1 << 60) + bytes(14) + b"\x38\0\xff\xff\0\0",
    ],
)  # fmt: skip
def test_what_is_no_program(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    found = read_program_at(str(path), libraries=True)
    assert found is None or found == Elf(found.machine, "", ())


def test_what_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "nothing", "/dev/null"):
        assert read_program_at(str(path)) is None


def test_a_cut_program_is_never_believed(tmp_path):
    whole = Path(LS).read_bytes()
    path = tmp_path / "cut"
    for length in (20, 63, 64, 100, 700, 4096, len(whole) // 2):
        path.write_bytes(whole[:length])
        read_program_at(str(path), libraries=True)


def test_the_c_library_of_this_machine():
    found = read_program_at(LS, libraries=True)
    libraries = find_libraries(Elf(MACHINE, found.loader, ("libc.so.6", "libm.so.6")))
    assert found.loader in libraries
    assert {os.path.basename(path) for path in libraries} >= {"libc.so.6", "libm.so.6"}
    assert all(os.path.realpath(path) == path for path in libraries.values())
    assert find_libraries(Elf(MACHINE, found.loader, ("libnothing.so.1",))) == {}
    assert find_libraries(Elf(MACHINE, "/lib/ld-none.so", ())) == {}
    assert is_self_contained(Elf(MACHINE, found.loader, ("libc.so.6", "ld-linux-x86-64.so.2")))
    assert not is_self_contained(Elf(MACHINE, found.loader, ("libssl.so.3",)))


# -- which program it is ---------------------------------------------------------------------------


def test_the_first_on_path_then_where_installers_put_it(home):
    first = program(home / "a/claude")
    program(home / "b/claude")
    usual = program(home / ".local/bin/claude")
    assert finder(home, f"relative:{home}/a:{home}/b").find("claude").path == str(first)
    assert finder(home, "/nowhere").find("claude").path == str(usual)
    assert list(candidates("claude", f"{home}/b", "")) == [f"{home}/b/claude"]
    assert finder(home).find("codex") is None


def test_versions_of_claude_are_shown_as_a_directory(home):
    versions = home / ".local/share/claude/versions"
    real = program(versions / "2.1.1")
    link = home / ".local/bin/claude"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    found = finder(home).find("claude")
    assert (found.path, found.mounts) == (str(real), (str(versions),))
    assert dict(found.env)["DISABLE_AUTOUPDATER"] == "1"


def package(directory, **about):
    directory.mkdir(parents=True)
    (directory / "package.json").write_text(json.dumps(about))
    return directory


@pytest.mark.parametrize("nested", [True, False])
def test_a_platforms_package_instead_of_a_stub(home, nested):
    modules = home / "lib/node_modules"
    own = package(modules / "opencode-ai", optionalDependencies={"opencode-linux-x64": "1"})
    other = (own / "node_modules" if nested else modules) / "opencode-linux-x64"
    native = program(other / "bin/opencode")
    stub = program(own / "bin/opencode.exe", "echo postinstall did not run\nexit 1\n")
    found = finder(home, machine="x86_64").examine(str(stub), "opencode")
    if MACHINE == "x86_64":
        assert (found.path, found.mounts) == (str(native), (str(other),))
    native.unlink()
    missing = finder(home, machine="x86_64")
    assert missing.examine(str(stub), "opencode") is None
    assert "what an installer has left in its place" in missing.notes[0]


def test_a_script_and_what_it_needs(home):
    modules = home / "lib/node_modules"
    own = package(modules / "@x/pi", dependencies={"a": "1"})
    script = program(own / "dist/cli.js", "#!/usr/bin/env node\n")
    assert finder(home).examine(str(script), "pi").mounts == (str(modules),)
    (own / "node_modules/a").mkdir(parents=True)
    found = finder(home).examine(str(script), "pi")
    assert (found.mounts, found.interpreter) == ((str(own),), "")
    node = program(home / "bin/node")
    whole = read_program_at(str(node), libraries=True)
    wanted = str(node) if is_self_contained(whole) else ""
    assert finder(home).examine(str(script), "pi").interpreter == wanted


def test_what_is_passed_over(home):
    cases = {
        "wrapper": "#!/bin/sh\nexec /opt/real \"$@\"\n",
        "data": "just text\n",
    }  # fmt: skip
    for name, text in cases.items():
        looker = finder(home)
        assert looker.examine(str(program(home / name, text)), "codex") is None
        assert looker.notes, name
    ours = program(home / "ours", '#!/bin/sh\nexec cagewrap -- claude "$@"\n')
    assert finder(home).examine(str(ours), "claude") is None
    assert finder(home).examine(str(home / "wrapper"), "codex", is_told=True) is not None
    foreign = finder(home, machine="s390x")
    assert foreign.examine(str(program(home / "native")), "codex") is None
    assert "this machine is s390x" in foreign.notes[0]
    (home / "plain").write_text("x")
    assert finder(home).examine(str(home / "plain"), "codex") is None


def test_every_symlink_on_the_way_is_judged(home):
    real = program(home / "real/tool")
    (home / "planted").mkdir()
    (home / "planted/link").symlink_to(real)
    (home / "start").symlink_to(home / "planted/link")
    looker = finder(home, follow=not_through(home / "planted"))
    assert looker.examine(str(home / "start"), "codex") is None
    assert str(home / "planted") in looker.notes[0]
    (home / "loop").symlink_to(home / "loop")
    assert finder(home).examine(str(home / "loop"), "codex") is None


def test_no_symlink_of_an_agents_chooses_a_directory(home):
    program(home / "elsewhere/tool")
    (home / "project").mkdir()
    (home / "project/tools").symlink_to(home / "elsewhere")
    (home / "by-way-of").symlink_to(home / "project/tools")
    follow = not_through(home / "project")
    for path in ("project/tools/tool", "by-way-of/tool"):
        assert finder(home, follow=follow).examine(str(home / path), "codex") is None
    assert finder(home, follow=follow).examine(str(home / "elsewhere/tool"), "codex") is not None


def test_no_file_of_an_agents_names_a_program(home):
    """What stands for another program says which: a shim, a package with one for each platform."""
    program(home / "elsewhere/bin/codex")
    shim = f"#!/bin/sh\n# asdf-plugin: {home} elsewhere\nexec asdf exec codex\n"
    program(home / "project/shim", shim)
    own = package(
        home / "project/node_modules/codex",
        optionalDependencies={"codex-linux-x64": "", "codex-linux-arm64": ""},
    )
    stub = program(own / "codex.js", "#!/usr/bin/env node\n")
    for name in ("codex-linux-x64", "codex-linux-arm64"):
        (own.parent / name).symlink_to(home / "elsewhere")
    for path in (home / "project/shim", stub):
        link = home / f"to-{path.name}"
        link.symlink_to(path)
        follow = not_through(home / "project")
        assert finder(home, follow=follow).examine(str(link), "codex") is None
        found = finder(home).examine(str(link), "codex")
        assert found is not None
        assert found.path == str(home / "elsewhere/bin/codex")


def test_known_agents():
    assert {"claude", "codex", "opencode", "gemini", "pi"} <= set(AGENTS)

"""An agent's program in a cage is the one on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podman.cages import IDENTITIES, RUNTIMES, wait_until

from .machines import NODE, READLINK, SELF, SHOW, Machine, copy, machine, script


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path) as made:
        yield made


# -- Claude's own installer ----------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("user", IDENTITIES)
def test_native_program(tmp_path: Path, user: str, runtime: str) -> None:
    with machine(tmp_path, "--user", user, "--runtime", runtime) as here:
        program = here.native("2.1.1")
        assert here.text("claude", SELF) == str(program)
        assert here.text(program, SELF) == str(program)
        assert here.text(here.home / ".local/bin/claude", SELF) == str(program)
        assert here.text("readlink", here.home / ".local/bin/claude") == str(program)


def test_nothing_else_of_the_home_is_seen(here: Machine) -> None:
    here.native("2.1.1")
    (here.home / ".local/share/claude/secret").write_text("x")
    (here.home / ".local/share/other").mkdir()
    (here.home / ".local/bin/other").write_text("x")
    here.text("claude", SELF)
    seen = here.text("sh", "-c", "cd ~/.local && find . ! -type d").split()
    assert sorted(seen) == ["./bin/claude", "./share/claude/versions/2.1.1"]


def test_an_update_between_two_messages(here: Machine) -> None:
    old = here.native("2.1.1")
    assert here.text("claude", SELF) == str(old)
    container = here.cage.state()["container_id"]
    new = here.native("2.1.2")
    assert here.text("claude", SELF) == str(new)
    old.unlink()
    assert here.text("claude", SELF) == str(new)
    assert here.text(here.home / ".local/bin/claude", SELF) == str(new)
    assert here.text("sh", "-c", f"claude {SELF}") == str(new)
    assert here.cage.state()["container_id"] == container
    here.native("2.1.1")  # and back
    assert here.text("claude", SELF) == str(old)


def test_an_update_while_a_message_runs(here: Machine) -> None:
    """A message that runs keeps its file, though the host has removed it."""
    old = here.native("2.1.1", Path("/usr/bin/cat"))
    with here.cage.popen("claude", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(b"1\n")
        agent.stdin.flush()
        assert agent.stdout.readline() == b"1\n"
        new = here.native("2.1.2")
        old.unlink()
        assert here.text("claude", SELF) == str(new)
        agent.stdin.write(b"2\n")
        agent.stdin.close()
        assert agent.stdout.readline() == b"2\n"
    assert agent.returncode == 0


def test_the_directory_of_versions_is_another_one(here: Machine) -> None:
    """As after a reinstallation: what is mounted is the old, empty one."""
    here.native("2.1.1")
    here.text("claude", SELF)
    versions = here.home / ".local/share/claude/versions"
    versions.rename(versions.with_name("old"))
    new = here.native("2.1.2")
    assert here.text("claude", SELF) == str(new)


def test_nothing_inside_can_change_it(here: Machine) -> None:
    program = here.native("2.1.1")
    here.text("claude", SELF)
    before = program.read_bytes()
    attempts = (
        f"echo x >>{program}",
        f"rm -f {program}",
        f"mv {program} /tmp/x",
        f"touch {program.parent}/2.1.2",
        f"chmod 777 {program}",
        f"mount -o remount,rw {program.parent}",
        f"umount {program.parent}",
        "rm -f /run/cagewrap/bin/claude",
        "ln -sf /bin/sh /run/cagewrap/bin/claude",
    )
    for attempt in attempts:
        assert here.run("sh", "-c", attempt).code != 0, attempt
    assert program.read_bytes() == before
    assert [path.name for path in program.parent.iterdir()] == ["2.1.1"]
    # What lies around it is the agent's own: the next message has the program nevertheless.
    here.run("sh", "-c", "rm -rf ~/.local; mv ~/.local ~/.moved; ln -s /etc ~/.local")
    assert here.text("claude", SELF) == "/etc/share/claude/versions/2.1.1", "the cage's own /etc"
    here.run("sh", "-c", "rm ~/.local; mkdir ~/.local; mv /run/cagewrap /run/moved")
    assert here.text("claude", SELF) == str(program)


def test_it_is_told_not_to_update_itself(here: Machine) -> None:
    here.native("2.1.1", Path("/usr/bin/printenv"))
    assert here.text("claude", "DISABLE_AUTOUPDATER") == "1"
    assert here.text("claude", "PATH").startswith("/run/cagewrap/bin:/usr/local/sbin:")
    assert here.run("printenv", "DISABLE_AUTOUPDATER").code == 1
    assert here.text("claude", "DISABLE_AUTOUPDATER", flags=("--env", "DISABLE_AUTOUPDATER=0"))


def test_a_shell_has_the_agents_too(here: Machine) -> None:
    program = here.native("2.1.1")
    assert here.text("sh", "-c", f"claude {SELF}") == str(program)
    assert here.run("env", "claude", SELF).code == 127


def test_a_cage_that_was_stopped(here: Machine) -> None:
    program = here.native("2.1.1")
    here.text("claude", SELF)
    here.cage.stop()
    assert here.text("claude", SELF) == str(program)
    assert here.cage.cagewrap("recreate").code == 0
    assert here.text("claude", SELF) == str(program)
    assert here.cage.cagewrap("rm", "--force").code == 0, "with the image of its layer"


def test_a_keeper_that_was_killed(here: Machine) -> None:
    program = here.native("2.1.1")
    here.text("claude", SELF)
    keeper = here.cage.keeper()
    os.kill(keeper, signal.SIGKILL)
    assert wait_until(lambda: here.cage.keeper() == 0, 5)
    new = here.native("2.1.2")
    assert here.text(here.home / ".local/bin/claude", SELF) == str(new)
    assert here.text(program, SELF) == str(program)


# -- npm and its like ------------------------------------------------------------------------------

STUB = 'echo "Error: native binary not installed." >&2\nexit 1\n'


def test_npm_global_with_its_platforms_package(here: Machine) -> None:
    """What npm has left is a stub; the program lies in another package."""
    prefix = here.home / ".npm-global"
    package = here.package(
        prefix,
        "@anthropic-ai/claude-code",
        bin={"claude": "bin/claude.exe"},
        optionalDependencies={
            "@anthropic-ai/claude-code-linux-x64-musl": "1",
            "@anthropic-ai/claude-code-linux-x64": "1",
            "@anthropic-ai/claude-code-darwin-x64": "1",
        },
    )
    stub = script(package / "bin/claude.exe", STUB)
    native = package / "node_modules/@anthropic-ai/claude-code-linux-x64/claude"
    copy(READLINK, native)
    here.link("claude", stub)
    assert here.text("claude", SELF) == str(native)
    assert here.run("ls", package / "package.json").code == 2, "not the package around it"


def test_npm_puts_the_program_itself_in_place(here: Machine) -> None:
    package = here.package(here.home / ".npm-global", "opencode-ai")
    program = copy(READLINK, package / "bin/opencode.exe")
    here.link("opencode", program)
    assert here.text("opencode", SELF) == str(program)


def test_a_launchers_program_with_what_lies_beside_it(here: Machine) -> None:
    """codex: a script of node's that starts a program in a platform's package."""
    package = here.package(
        here.home / ".npm-global",
        "@openai/codex",
        optionalDependencies={"@openai/codex-linux-x64": "1"},
    )
    here.link("codex", script(package / "bin/codex.js", SHOW))
    target = package / "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl"
    program = copy(READLINK, target / "bin/codex")
    copy(READLINK, target / "codex-path/rg")
    assert here.text("codex", SELF) == str(program)
    assert here.text(target / "codex-path/rg", SELF) == str(target / "codex-path/rg")


def test_a_script_with_its_node(here: Machine) -> None:
    """As nvm has it: node lies where the package was installed from."""
    prefix = here.home / ".nvm/versions/node/v22.0.0"
    node = prefix / "bin/node"
    copy(NODE, node)
    package = here.package(prefix, "@google/gemini-cli", dependencies={})
    (package / "part.js").write_text("x")
    program = script(package / "bundle/gemini.js", SHOW)
    (prefix / "bin/gemini").symlink_to(program)
    here.cage.env["PATH"] = f"{prefix}/bin:/usr/bin:/bin"
    assert json.loads(here.text("gemini", "a b", "")) == [str(node), str(program), "a b", ""]
    assert json.loads(here.text(prefix / "bin/gemini", "x")) == [str(node), str(program), "x"]
    # An image's own node stays in front of it; this image has none.
    assert here.text("sh", "-c", "command -v node") == "/run/cagewrap/bin/last/node"
    assert here.text("sh", "-c", "gemini x; ls -A ~/.nvm/versions/node/v22.0.0").splitlines()[
        1:
    ] == [
        "bin",
        "lib",
    ]
    # npm makes the directory anew at an update.
    package.rename(package.with_name("old"))
    again = here.package(prefix, "@google/gemini-cli")
    script(again / "bundle/gemini.js", SHOW.replace("[process", '["new", process'))
    assert json.loads(here.text("gemini"))[0] == "new"


def test_a_script_whose_parts_lie_beside_its_package(here: Machine) -> None:
    """As bun and a plain `npm install` have it."""
    modules = here.home / ".bun/install/global/node_modules"
    part = modules / "part"
    part.mkdir(parents=True)
    (part / "package.json").write_text('{"name": "part", "main": "index.js"}')
    (part / "index.js").write_text("module.exports = 'part of it'")
    package = modules / "@mariozechner/pi-coding-agent"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"dependencies": {"part": "1"}}')
    here.link(
        "pi", script(package / "cli.js", "#!/usr/bin/env node\nconsole.log(require('part'))\n")
    )
    here.link("node", NODE)
    assert here.text("pi") == "part of it"


def test_what_stands_for_other_programs(here: Machine) -> None:
    """asdf's say which; volta's and mise's do not."""
    install = here.home / ".asdf/installs/nodejs/22.1.0"
    program = copy(READLINK, install / "bin/claude")
    shim = here.home / ".asdf/shims/claude"
    script(
        shim,
        '#!/usr/bin/env bash\n# asdf-plugin: nodejs 22.1.0\nexec asdf exec "claude" "$@"\n',
    )
    here.cage.env["PATH"] = f"{here.home}/.asdf/shims:/usr/bin:/bin"
    assert here.text("claude", SELF) == str(program)
    volta = copy(READLINK, here.home / ".volta/bin/volta-shim")
    volta.with_name("codex").symlink_to(volta)
    here.cage.env["PATH"] = f"{here.home}/.volta/bin:/usr/bin:/bin"
    done = here.run("codex")
    assert done.code == 127
    assert b"codex is neither on this machine nor in the image" in done.err
    assert b"volta-shim, which stands for another program" in done.err
    assert b'[agents.codex] program = "PATH"' in done.err


# -- [agents.NAME] ---------------------------------------------------------------------------------


def test_the_images_own_program(here: Machine) -> None:
    here.native("2.1.1")
    here.configure('[agents.claude]\nprogram = "image"\n')
    done = here.run("claude", SELF)
    assert done.code == 127
    assert b"claude is not in the cage" in done.err
    install = "cp /usr/bin/readlink /usr/local/bin/claude"
    here.text("sh", "-c", install)
    assert here.text("claude", SELF) == "/usr/local/bin/claude"
    here.configure("")
    assert here.text("claude", SELF) == str(here.home / ".local/share/claude/versions/2.1.1")
    here.link("claude", Path("/nowhere"))
    assert here.text("claude", SELF) == "/usr/local/bin/claude", "auto: what there is"
    here.configure('[agents.claude]\nprogram = "host"\n')
    done = here.run("claude", SELF)
    assert done.code == 127
    assert b"claude is not on this machine, where [agents.claude] wants it from" in done.err


def test_a_program_by_its_path(here: Machine) -> None:
    """Of an agent that cagewrap knows nothing of."""
    program = copy(READLINK, here.home / "tools/deep/agent-7")
    here.configure('[agents.mine]\nprogram = "~/tools/deep/agent-7"\n')
    assert here.text("mine", SELF) == str(program)
    assert here.text("sh", "-c", f"mine {SELF}") == str(program)
    assert here.text(program, SELF) == str(program)
    here.configure(f'[agents.mine]\nprogram = "{here.home}/tools/nothing"\n')
    done = here.run("mine")
    assert done.code == 127
    assert b"is no program that a cage can have" in done.err


def test_a_path_on_the_command_line(here: Machine) -> None:
    """What runs on any Linux is lent; what needs libraries of this machine belongs in the image."""
    program = copy(Path("/usr/bin/catatonit"), here.home / "tools/static")
    assert here.text(program, "-V").startswith("tini") or here.run(program, "-V").code == 0
    done = here.run("/usr/bin/podman", "version")
    assert done.code == 127
    assert b"/usr/bin/podman is not in the cage" in done.err


# -- what is never lent ----------------------------------------------------------------------------


def test_secrets_are_not_programs(here: Machine) -> None:
    """Whatever somebody has made executable, and linked to."""
    key = script(here.home / ".ssh/id_test", "#!/bin/sh\n# SECRET-KEY\n")
    here.link("claude", key)
    here.configure(f'[agents.key]\nprogram = "{key}"\n')
    for command in ("claude", "key", str(key)):
        done = here.run(command)
        assert done.code == 127, done
    done = here.run("key")
    assert b"it holds secrets of yours" in done.err
    assert b"SECRET-KEY" not in here.run("sh", "-c", f"cat {key}").out


def test_what_an_agent_wrote_is_not_lent(tmp_path: Path) -> None:
    """Another cage's agent, in a directory that is on PATH."""
    with machine(tmp_path / "a") as theirs:
        theirs.text("true")
        secret = copy(READLINK, theirs.home / "private/tool")
        planted = theirs.cage.project / "bin/claude"
        theirs.text("sh", "-c", f"mkdir bin; ln -s {secret} bin/claude")
        with machine(tmp_path / "b") as here:
            here.cage.env["XDG_STATE_HOME"] = theirs.cage.env["XDG_STATE_HOME"]
            here.cage.env["PATH"] = f"{planted.parent}:/usr/bin:/bin"
            done = here.run("claude")
            assert done.code == 127, done
            here.configure(f'[agents.claude]\nprogram = "{planted}"\n')
            done = here.run("claude", SELF)
            assert done.code == 127, done
            assert b"lies where an agent can write" in done.err

"""Agents in images of any kind: a turn of real Claude Code in each, and what is said where there
can be none."""

from __future__ import annotations

import io
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import claude_agent_sdk
import pytest

from podman.cages import podman

from .benches import NAME
from .machines import NODE, ODD, READLINK, SELF, SHOW, Machine, copy, machine, script, use_peers

use_peers()

from mock_api import MockApi  # noqa: E402

CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled/claude"
HOSTILE = (
    'ENTRYPOINT ["/bin/false"]', 'CMD ["nonsense"]', "USER nobody", "WORKDIR /nowhere",
    "ENV PATH=", "ENV HOME=/root", "ENV USER=mallory", "ENV LD_PRELOAD=/nowhere.so",
    "ENV IS_SANDBOX=no", "ENV SHELL=/bin/false", "ENV LC_ALL=xx_XX", "VOLUME /home", "VOLUME /tmp",
    "STOPSIGNAL SIGUSR1", "EXPOSE 1", "LABEL cagewrap.name=other", "LABEL cagewrap.state=/other",
    'HEALTHCHECK --interval=1s CMD ["/bin/touch", "/checked"]', 'ONBUILD RUN ["/bin/false"]',
    'SHELL ["/bin/false"]',
)  # fmt: skip


def archive(path: Path, files: dict[str, Path | bytes | str]) -> Path:
    """A root file system: content by name; a text is a symlink's target."""
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
                continue
            data = content.read_bytes() if isinstance(content, Path) else content
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    return path


def make(name: str, tar: Path, *changes: str) -> str:
    options = [word for change in changes for word in ("--change", change)]
    done = podman("import", "--quiet", *options, str(tar), name)
    assert done.returncode == 0, done.stderr
    return name


def build(name: str, base: str, scratch: Path, *lines: str) -> str:
    """In the one format that has a health check."""
    context = scratch / "context"
    context.mkdir()
    (context / "Containerfile").write_text("\n".join((f"FROM {base}", *lines)))
    words = ("--quiet", "--pull=never", "--format", "docker", "--tag", name, str(context))
    done = podman("build", *words)
    assert done.returncode == 0, done.stderr
    return name


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, workbench: str) -> Iterator[dict[str, str]]:
    """By what they are. workbench: the image that `image build` makes."""
    scratch = tmp_path_factory.mktemp("images")
    busybox: dict[str, Path | bytes | str] = {"bin/busybox": ODD / "busybox", "bin/sh": "busybox"}
    made = {
        "debian13": make("localhost/odd-debian13:1", ODD / "debian13.tar"),
        "busybox": make("localhost/odd-busybox:1", archive(scratch / "busybox.tar", busybox)),
        "musl": make(
            "localhost/odd-musl:1",
            archive(
                scratch / "musl.tar", busybox | {"lib/ld-musl-x86_64.so.1": ODD / "ld-musl.so"}
            ),
        ),
        "nothing": make("localhost/odd-nothing:1", archive(scratch / "no.tar", {"x": b""})),
    }
    made["hostile"] = build("localhost/odd-hostile:1", made["debian13"], scratch, *HOSTILE)
    foreign = bytearray((ODD / "busybox").read_bytes())
    foreign[18:20] = (183).to_bytes(2, "little")  # e_machine: EM_AARCH64
    made["foreign"] = make(
        "localhost/odd-foreign:1",
        archive(scratch / "foreign.tar", {"bin/busybox": bytes(foreign), "bin/sh": "busybox"}),
    )
    yield {**made, "workbench": NAME}
    for name in made.values():
        podman("rmi", "--force", name)


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real one, as its installer has it."""
    path = tmp_path_factory.mktemp("claude") / ".local/share/claude/versions/2.1.100"
    return copy(CLAUDE, path)


@pytest.fixture
def api() -> Iterator[MockApi]:
    with MockApi() as server:
        yield server
    assert server.faults == []


def agents_machine(root: Path, api: MockApi, image: str, *flags: str) -> Machine:
    made = Machine(root, "--image", image, "--host-port", str(api.port), *flags)
    made.cage.env |= {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "sk-test-dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }
    return made


def turn(here: Machine, prompt: str) -> str:
    """What Claude answers in the end."""
    done = here.run("claude", "-p", "--permission-mode", "bypassPermissions", prompt)
    assert done.code == 0, (done, here.cage.logs())
    return done.out.decode()


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("workbench", ()),
        ("debian13", ()),
        ("hostile", ()),
        ("hostile", ("--user", "owner")),
        ("debian13", ("--podman-arg=--read-only", "--podman-arg=--tmpfs=/tmp")),
        ("busybox", ()),
        ("musl", ()),
        ("nothing", ()),
        ("busybox", ("--podman-arg=--read-only", "--podman-arg=--tmpfs=/tmp")),
    ],
)
def test_a_turn_of_claude(
    tmp_path: Path,
    api: MockApi,
    images: dict[str, str],
    claude: Path,
    kind: str,
    flags: tuple[str, ...],
) -> None:
    """A glibc program: where an image has no glibc, this machine's is lent with it."""
    here = agents_machine(tmp_path, api, images[kind], *flags)
    try:
        here.link("claude", claude)
        made = here.cage.project / "made.txt"
        write = f'@@tool Write {{"file_path": "{made}", "content": "made inside\\n"}}'
        assert turn(here, write).startswith("RESULT[ok]")
        assert made.read_text() == "made inside\n"
        answer = turn(here, "@@bash echo from bash | tee more.txt; readlink /proc/$PPID/exe")
        if kind in ("busybox", "musl", "nothing"):
            assert "No suitable shell found" in answer
            here.cage.stop()
            done = here.run("claude", "--version")
            assert b"has neither bash nor zsh, so claude's Bash tool will fail" in done.err
        else:
            assert answer.startswith("RESULT[ok]"), answer
            assert "from bash" in answer
            assert str(claude) in answer
            assert (here.cage.project / "more.txt").read_text() == "from bash\n"
        assert api.messages[-1].api_key == "sk-test-dummy"
    finally:
        here.cage.remove()


def test_claude_updated_between_two_messages(
    tmp_path: Path, api: MockApi, images: dict[str, str], claude: Path
) -> None:
    here = agents_machine(tmp_path, api, images["debian13"])
    asked = "@@bash readlink /proc/$PPID/exe"
    try:
        versions = here.home / ".local/share/claude/versions"
        versions.mkdir(parents=True)
        old, new = versions / "2.1.100", versions / "2.1.101"
        shutil.move(claude, old)
        here.link("claude", old)
        assert str(old) in turn(here, asked)
        container = here.cage.state()["container_id"]
        new.hardlink_to(old)
        here.link("claude", new)
        assert str(new) in turn(here, asked)
        old.unlink()
        assert str(new) in turn(here, asked)
        assert here.cage.state()["container_id"] == container
        shutil.move(new, claude)
    finally:
        here.cage.remove()


def test_it_neither_updates_itself_nor_says_that_it_should_be(
    tmp_path: Path, api: MockApi, images: dict[str, str], claude: Path
) -> None:
    here = agents_machine(tmp_path, api, images["debian13"])
    try:
        versions = here.home / ".local/share/claude/versions"
        versions.mkdir(parents=True)
        (versions / "2.1.100").hardlink_to(claude)
        here.link("claude", versions / "2.1.100")
        found = here.run("claude", "doctor").out.decode()
        assert "Running: native" in found
        assert "Auto-updates: disabled (set by env" in found
        assert "No installation issues found" in found, found
        assert b"Updates are disabled" in here.run("claude", "update").out
        assert sorted(path.name for path in versions.iterdir()) == ["2.1.100"]
    finally:
        here.cage.remove()


def test_a_script_with_its_node_where_there_is_no_c_library(
    tmp_path: Path, images: dict[str, str]
) -> None:
    """node needs more of it than what was lent before."""
    with machine(tmp_path, "--image", images["musl"]) as here:
        program = here.native("2.1.1")
        assert here.text("claude", SELF) == str(program)
        package = here.package(here.home / ".nvm/versions/node/v22.0.0", "@google/gemini-cli")
        copy(NODE, here.home / ".nvm/versions/node/v22.0.0/bin/node")
        here.link("gemini", script(package / "gemini.js", SHOW))
        assert str(package / "gemini.js") in here.text("gemini")


def test_what_an_image_says_of_itself_does_not_hold(tmp_path: Path, images: dict[str, str]) -> None:
    with machine(tmp_path, "--image", images["hostile"]) as here:
        lines = here.text("env").splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        assert found["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        assert (found["HOME"], found["USER"]) == (str(here.home), "root")
        assert found["IS_SANDBOX"] == "1"
        assert found["LC_ALL"] == "C.UTF-8"
        assert here.text("id", "-u") == "0"
        assert here.text("pwd") == str(here.cage.project)
        time.sleep(1.2)
        assert here.run("ls", "/checked").code == 2, "its health check runs nothing"
        labels = here.cage.container()["Config"]["Labels"]
        assert labels["cagewrap.name"] == here.cage.name()
        began = time.monotonic()
        here.cage.cagewrap("stop")
        assert time.monotonic() - began < 2, "its own stop signal would be waited for"


# -- said before it is started ---------------------------------------------------------------------


def test_a_program_for_glibc_where_there_is_none(tmp_path: Path, images: dict[str, str]) -> None:
    """One of the cage's own, which nothing is lent for."""
    for kind, has in (("busybox", b"it has no C library"), ("musl", b"its C library is musl")):
        with machine(tmp_path / kind, "--image", images[kind]) as here:
            copy(READLINK, here.cage.project / "tool")
            done = here.run("./tool", SELF)
            assert (done.code, done.out) == (126, b""), done
            assert b"is a program for glibc: it is started by /lib64/ld-linux" in done.err
            assert has in done.err
            assert (
                f"fix: cagewrap rm {here.cage.name()}, then: cagewrap --image".encode() in done.err
            )


def test_a_program_for_musl_where_there_is_none(tmp_path: Path, images: dict[str, str]) -> None:
    with machine(tmp_path, "--image", images["debian13"]) as here:
        tool = bytearray(READLINK.read_bytes())
        wanted, other = b"/lib64/ld-linux-x86-64.so.2\0", b"/lib/ld-musl-x86_64.so.1\0\0\0\0"
        at = tool.index(wanted)
        tool[at : at + len(wanted)] = other
        path = here.cage.project / "tool"
        path.write_bytes(tool)
        path.chmod(0o755)
        done = here.run("./tool")
        assert done.code == 126
        assert b"is a program for musl" in done.err
        assert b"its C library is glibc" in done.err


def test_a_script_without_its_interpreter(tmp_path: Path, images: dict[str, str]) -> None:
    with machine(tmp_path, "--image", images["debian13"]) as here:
        script(here.cage.project / "agent", "#!/usr/bin/env node\n")
        done = here.run("./agent")
        assert done.code == 126
        assert (
            b"is a script for node, which is not in the image localhost/odd-debian13:1" in done.err
        )
        script(here.cage.project / "agent", "#!/opt/none/python3 -u\n")
        done = here.run("./agent")
        assert (done.code, done.out) == (126, b"")
        assert b"is a script for /opt/none/python3, which is not in the image" in done.err
        script(here.cage.project / "agent", "#!/usr/bin/env -S A=b perl -e exit(3)\n")
        assert here.run("./agent").code == 3


def test_another_processor(tmp_path: Path, images: dict[str, str]) -> None:
    with machine(tmp_path, "--image", images["foreign"]) as here:
        done = here.run("sh", "-c", "true")
        assert (done.code, done.out) == (126, b"")
        assert b"made for another processor" in done.err
        # Only the image is; a program of this machine's brings all it needs.
        program = here.native("2.1.1")
        assert here.text("claude", SELF) == str(program)


def test_what_can_run_is_not_refused(tmp_path: Path, images: dict[str, str]) -> None:
    """Static, in an image without anything."""
    with machine(tmp_path, "--image", images["nothing"]) as here:
        copy(ODD / "busybox", here.cage.project / "busybox")
        assert here.text("./busybox", "echo", "yes") == "yes"
        (here.cage.project / "looping").symlink_to("looping")
        assert here.run("./looping").code in (126, 127)

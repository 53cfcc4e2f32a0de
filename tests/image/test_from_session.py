"""What a session installed becomes an image; what is the owner's does not."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podman.cages import IDENTITIES, IMAGE, podman

from .machines import READLINK, Machine, copy, machine

TAG = "localhost/odd-from-session:1"
TOKEN = "sk-ant-planted-5f0c9e7a"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path) as made:
        yield made
    podman("rmi", "--force", TAG)
    assert left_images() == []


def left_images() -> list[str]:
    """What cagewrap has made for sessions, and images without a name."""
    done = podman("images", "--all", "--format", "{{.Repository}} {{.Id}}")
    lines = done.stdout.splitlines()
    return [one for one in lines if "cagewrap-session" in one or one.startswith("<none>")]


def inspect(image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(podman("image", "inspect", image).stdout)[0]
    return found


def made(here: Machine, *words: str) -> dict[str, Any]:
    done = here.cage.cagewrap("image", "from-session", here.cage.name(), TAG, *words)
    assert done.code == 0, done
    return inspect(TAG)


def files_of(image: str, but: int) -> dict[str, bytes]:
    """All files of an image's layers above the first `but`."""
    saved = subprocess.run(
        ["podman", "save", "--quiet", "--format", "docker-archive", image],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(saved)) as outer:
        for digest in inspect(image)["RootFS"]["Layers"][but:]:
            file = outer.extractfile(digest.partition(":")[2] + ".tar")
            with tarfile.open(fileobj=file) as layer:
                for member in layer.getmembers():
                    content = layer.extractfile(member) if member.isreg() else None
                    found[member.name] = content.read() if content else b""
    return found


@pytest.mark.parametrize("user", IDENTITIES)
def test_what_is_installed_and_nothing_else(tmp_path: Path, user: str) -> None:
    secret = tmp_path / "secrets"
    secret.mkdir()
    (secret / "token").write_text(TOKEN)
    flags = ("--user", user, "--mount", str(secret), "--secret", "PLANTED_TOKEN")
    with machine(tmp_path, *flags) as here:
        here.cage.env["PLANTED_TOKEN"] = TOKEN
        here.native("2.1.1")
        here.text("claude", "/proc/self/exe")
        lent = copy(READLINK, Path.home() / "odd-tools/mine")  # its place is in the layer
        here.configure(f'[agents.mine]\nprogram = "{lent}"\n')
        assert here.text("mine", "/proc/self/exe") == str(lent)
        script = f"""
            echo {TOKEN} >~/.credentials; mkdir -p ~/.claude; echo {TOKEN} >~/.claude/x
            echo {TOKEN} >project-file; echo {TOKEN} >/tmp/x; mkdir /tmp/d
            echo {TOKEN} >/var/tmp/y
            test "$PLANTED_TOKEN" = {TOKEN} && grep -q {TOKEN} {secret}/token"""
        here.text("sh", "-ec", script)
        try:
            if user == "root":
                here.text(
                    "sh", "-ec", "dpkg -i /opt/debs/hello.deb; rm /usr/bin/perl; echo 1 >/opt/n"
                )
            image = made(here)
            base = inspect(IMAGE)
            count = len(base["RootFS"]["Layers"])
            assert image["RootFS"]["Layers"][:count] == base["RootFS"]["Layers"]
            assert len(image["RootFS"]["Layers"]) == count + 1
            assert [key for key in image["Labels"] if key.startswith("cagewrap.")] == [
                "cagewrap.from-session"
            ]
            for key in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir"):
                assert image["Config"].get(key) == base["Config"].get(key)
            files = files_of(TAG, count)
            everything = json.dumps(image) + "\n".join(files)
            contents = b"\n".join(files.values())
            for word in (
                TOKEN,
                str(here.home),
                str(here.cage.project),
                str(tmp_path),
                "/odd-tools",
            ):
                assert word.strip("/") not in everything, word
                assert word.encode() not in contents, word
            assert not [name for name in files if "cagewrap" in name or name.startswith("tmp/")]
            if user == "root":
                assert files["opt/n"] == b"1\n"
                assert "usr/bin/.wh.perl" in files
                assert inside("hello", "--traditional") == "hello, world\n"
                assert inside("sh", "-c", "echo $HOME") == "/root\n"
                assert inside("ls", "-ld", "/tmp").startswith("drwxrwxrwt")
                assert inside("getent", "passwd", "root").startswith("root:x:0:0:root:/root:")
                assert inside("sh", "-c", "ls /usr/bin/perl 2>/dev/null") == ""
        finally:
            podman("rmi", "--force", TAG)


def inside(*command: str) -> str:
    """What a command in a container of the image writes."""
    return podman("run", "--rm", "--network", "none", TAG, *command).stdout


def test_it_is_a_base_for_cages(here: Machine, tmp_path: Path) -> None:
    here.text("sh", "-ec", "echo 1 >/opt/n")
    made(here)
    assert here.text("cat", "/opt/n") == "1", "the session goes on"
    with machine(tmp_path / "other", "--image", TAG) as other:
        assert other.text("cat", "/opt/n") == "1"
        other.text("sh", "-c", "echo 2 >/opt/m")
        done = other.cage.cagewrap("image", "from-session", "--json")
        assert done.code == 0, done
        name = json.loads(done.out)["image"]
        assert name == f"localhost/{other.cage.name()}:latest"
        try:
            base = inspect(IMAGE)
            assert len(inspect(name)["RootFS"]["Layers"]) == len(base["RootFS"]["Layers"]) + 2
            assert podman("run", "--rm", name, "cat", "/opt/n", "/opt/m").stdout == "1\n2\n"
        finally:
            podman("rmi", "--force", name)


def test_layers_do_not_pile_up(here: Machine) -> None:
    count = len(inspect(IMAGE)["RootFS"]["Layers"])
    first = "mkdir d; echo 0 >d/0; echo 0 >gone; ln d/0 link"
    here.text("sh", "-ec", f"cd /opt; {first}")
    for number in range(1, 5):
        here.text("sh", "-ec", f"cd /opt; echo {number} | tee {number} >last; rm -r d")
        here.text("sh", "-ec", f"cd /opt; mkdir d; touch d/{number}; rm -f gone")
        done = here.cage.cagewrap("recreate")
        assert done.code == 0, done
        [session] = left_images()
        assert len(inspect(session.split()[1])["RootFS"]["Layers"]) == count + 1
    found = here.text("sh", "-c", "cd /opt; cat 1 2 3 4 last link; ls d; test ! -e gone")
    assert found.split() == ["1", "2", "3", "4", "4", "0", "4"]
    image = made(here)
    assert len(image["RootFS"]["Layers"]) == count + 1
    assert image["Config"].get("Entrypoint") is None
    assert inside("cat", "/opt/4") == "4\n"
    assert here.cage.cagewrap("recreate", "--fresh").code == 0
    assert left_images() == []
    assert here.run("ls", "/opt/4").code == 2


def test_a_session_from_before_layers_were_counted(here: Machine) -> None:
    """Its image says nothing of what lies below it."""
    here.text("sh", "-c", "echo 1 >/opt/n")
    here.cage.stop()
    podman("commit", "--quiet", here.cage.name(), "localhost/odd-old:1")
    podman("rm", "--force", here.cage.name())
    with machine(here.home.parent / "old", "--image", "localhost/odd-old:1") as old:
        old.text("sh", "-c", "echo 2 >/opt/m")
        assert old.cage.cagewrap("recreate").code == 0
        assert old.text("cat", "/opt/n", "/opt/m") == "1\n2"
        assert old.cage.cagewrap("rm", "--force").code == 0
    podman("rmi", "--force", "localhost/odd-old:1")


def test_what_is_refused(here: Machine) -> None:
    done = here.cage.cagewrap("image", "from-session", "nobody")
    assert done.code == 120
    here.text("true")
    done = here.cage.cagewrap("image", "from-session", here.cage.name(), "Not A Name")
    assert done.code == 110
    with here.cage.popen("sleep", "1000", stdin=subprocess.DEVNULL):
        while not here.cage.inside_programs("sleep"):
            pass
        done = here.cage.cagewrap("image", "from-session", here.cage.name(), TAG)
        assert done.code == 120
        assert b"agent(s) at work" in done.err
        assert f"fix: cagewrap stop {here.cage.name()}".encode() in done.err
        here.cage.stop()

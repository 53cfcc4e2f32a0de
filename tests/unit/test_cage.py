"""Names, and the hash that tells whether a cage is still what the settings ask for."""

import re

from cagewrap import cage
from cagewrap.model import CageSpec, Identity, Limits, Mount, NetworkMode, Owner
from cagewrap.runtimes.create import run_args

SPEC = CageSpec(
    name="cagewrap-p-12345678",
    project="/home/me/p",
    session="s",
    image="localhost/cagewrap:latest",
    runtime="crun",
    identity=Identity.ROOT,
    network=NetworkMode.OPEN,
    mounts=(
        Mount("/state/home", "/home/me", readonly=False),
        Mount('/home/me/a "b", c', "/home/me/p", readonly=False),
        Mount("/data", "/data", readonly=True),
    ),
    limits=Limits(),
    devices=(),
    podman_args=(),
    home="/home/me",
)
OWNER = Owner(1002, 1002, "me", "/home/me", (2001,))


def test_name_says_who_and_differs_by_project_session_and_salt():
    names = {
        cage.cage_name(project, session, salt)
        for project in ("/a/p", "/b/p")
        for session in ("", "s", "S")
        for salt in ("", "+")
    }
    assert len(names) == 12
    assert all(re.fullmatch(r"cagewrap-(p|s)-[0-9a-f]{8}", name) for name in names)


def test_name_is_one_podman_takes_and_a_socket_path_holds():
    for text in ("Ü/../x" * 50, "日本", "-", "", "a b\nc", ".hidden"):
        name = cage.cage_name("/p/" + text, text)
        assert re.fullmatch(r"cagewrap-[a-z0-9-]+-[0-9a-f]{8}", name)
        assert len(f"/run/user/4294967295/cagewrap/{name}.sock") <= 107


def test_config_hash_stays_what_earlier_versions_wrote_down():
    assert cage.config_hash(SPEC) == "3ea525f2f50700d4"


def test_config_hash_ignores_names_and_sees_everything_else():
    base = cage.config_hash(SPEC)
    assert cage.config_hash(SPEC._replace(name="x", session="y", labels=(("a", "b"),))) == base
    changes = (
        {"image": "other"},
        {"runtime": "runc"},
        {"identity": Identity.OWNER},
        {"network": NetworkMode.NONE},
        {"mounts": SPEC.mounts[:1]},
        {"limits": Limits(pids=5)},
        {"devices": ("/dev/dri",)},
        {"podman_args": ("--cap-drop=all",)},
        {"home": "/home/you"},
    )
    assert len({cage.config_hash(SPEC._replace(**change)) for change in changes} | {base}) == 10


def test_run_args_whole():
    spec = cage.with_labels(SPEC, "/state")
    assert run_args(spec, pid_file="/run/x/init.pid", init="/usr/bin/catatonit", owner=OWNER) == (
        "podman", "--runtime", "crun", "run", "--detach", "--pull=never",
        "--name", "cagewrap-p-12345678",
        "--hostname", "cagewrap-p-12345678",
        "--pidfile", "/run/x/init.pid",
        "--log-driver", "none",
        "--http-proxy=false",
        "--image-volume=ignore", "--no-healthcheck",
        "--stop-signal", "TERM", "--stop-timeout", "2",
        "--security-opt", "label=disable",
        "--userns", "host",
        "--pid", "private", "--ipc", "private", "--uts", "private", "--cgroupns", "private",
        "--network", "private",
        "--group-add", "keep-groups",
        "--label", "cagewrap.state=/state",
        "--label", "cagewrap.name=cagewrap-p-12345678",
        "--label", "cagewrap.project=/home/me/p",
        "--label", "cagewrap.session=s",
        "--label", f"cagewrap.config={cage.config_hash(SPEC)}",
        "--label", "cagewrap.version=0.1.0",
        "--mount", "type=bind,source=/usr/bin/catatonit,target=/dev/cagewrap-init,ro",
        "--mount", 'type=bind,"source=/state/home","target=/home/me"',
        "--mount", 'type=bind,"source=/home/me/a ""b"", c","target=/home/me/p"',
        "--mount", 'type=bind,"source=/data","target=/data",ro=true',
        "--workdir", "/",
        "--user", "0:0",
        "--entrypoint", '["/dev/cagewrap-init","-P"]',
        "localhost/cagewrap:latest",
    )  # fmt: skip


def test_run_args_of_an_owner_with_limits():
    spec = SPEC._replace(
        identity=Identity.OWNER,
        runtime="runc",
        network=NetworkMode.NONE,
        limits=Limits(memory_bytes=2**30, cpus=1.5, pids=100, shm_bytes=2**20),
        devices=("/dev/fuse",),
        podman_args=("--cap-drop", "all"),
    )
    words = run_args(spec, pid_file="p", init="i", owner=OWNER)
    text = " ".join(words)
    assert "--userns keep-id" in text
    assert "--user 1002:1002" in text
    assert "--network none" in text
    assert "--memory 1073741824 --cpus 1.5 --pids-limit 100 --shm-size 1048576" in text
    assert "--device /dev/fuse" in text
    assert "keep-groups" not in text, "runc does not know it"
    assert words[-3:] == ("--cap-drop", "all", "localhost/cagewrap:latest")

"""Checks on made-up file trees and recorded answers; the real machine is in tests/podman."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from cagewrap import errors
from cagewrap.cli.doctor import render_json, render_table
from cagewrap.doctor import CheckResult, Host, engine, exit_code_of, kernel, namespaces, programs
from cagewrap.doctor.directories import check_cwd, check_home, check_runtime_dir
from cagewrap.doctor.engine import Engine, parse_info, probe_args
from cagewrap.doctor.host import existing_parent, file_system_of
from cagewrap.doctor.result import failed, passed, warned
from cagewrap.proc import Outcome

INFO = {
    "host": {
        "cgroupControllers": ["cpu", "memory", "pids"],
        "idMappings": {
            "uidmap": [
                {"container_id": 0, "host_id": 1002, "size": 1},
                {"container_id": 1, "host_id": 165536, "size": 65536},
            ]
        },
    },
    "store": {
        "graphDriverName": "overlay",
        "graphRoot": "/home/tester/.local/share/containers/storage",
        "graphStatus": {"Backing Filesystem": "extfs", "Native Overlay Diff": "true"},
        "runRoot": "/run/user/1002/containers",
    },
}


def answer(code: int = 0, stdout: str = "", stderr: str = ""):
    """A capture that gives every command the same answer."""
    return lambda argv, *, timeout_s, env: Outcome(tuple(argv), code, stdout.encode(), stderr)


def tree(root: Path, capture=None, **files: str) -> Host:
    """A machine whose files are `files`, a double underscore standing for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    programs_dir = root / "programs"
    programs_dir.mkdir(exist_ok=True)
    env = {"PATH": str(programs_dir), "HOME": str(root), "XDG_RUNTIME_DIR": "/run/user/1002"}
    return Host(env=env, uid=1002, user="tester", capture=capture or answer(), root=str(root))


def install(host: Host, name: str, mode: int = 0o755) -> Path:
    path = Path(host.env["PATH"]) / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_exit_code_is_that_of_the_first_failure():
    results = (
        passed("a", "x", "y"),
        warned("b", "x", "y", "z"),
        failed("c", errors.NetworkSetupError, "x", "y", "z"),
        failed("d", errors.StorageError, "x", "y", "z"),
    )
    assert exit_code_of(results) == errors.NetworkSetupError.exit_code
    assert exit_code_of(results[:2]) == 0


def test_json_has_its_keys():
    results = (passed("a", "x", "y"), failed("c", errors.StorageError, "no", "room", "fix it"))
    document = json.loads(render_json(results))
    assert set(document) == {"cagewrap", "ok", "checks"}
    assert document["ok"] is False
    assert document["checks"][1] == {
        "id": "c",
        "status": "fail",
        "found": "no",
        "wanted": "room",
        "fix": "fix it",
        "exit_code": 117,
    }


def test_table_has_the_fix_as_a_line_of_its_own():
    text = render_table((warned("ab", "found", "wanted", "do this"),))
    assert text.splitlines()[0].endswith("warn\x1b[0m  ab  found")
    assert text.splitlines()[1].strip() == "fix: do this"


@pytest.mark.parametrize(
    ("subuid", "subgid", "status"),
    [
        ("tester:100000:65536\n", "tester:100000:65536\n", "ok"),
        ("1002:100000:65536\n", "tester:100000:65536\n", "ok"),
        ("tester:100000:65536\n", "", "fail"),
        ("", "tester:100000:65536\n", "fail"),
        ("other:100000:65536\n", "tester:100000:65536\n", "fail"),
        ("tester:100000:1000\n", "tester:100000:65536\n", "warn"),
        ("tester:100000:65536\nother:150000:10\n", "tester:100000:65536\n", "warn"),
    ],
)
def test_subids(tmp_path, subuid, subgid, status):
    host = tree(tmp_path, etc__subuid=subuid, etc__subgid=subgid)
    result = namespaces.check_subids(host)
    assert result.status == status
    if status != "ok":
        assert "usermod --add-subuids" in result.fix
        assert "tester" in result.fix


def test_subids_fix_names_a_free_range(tmp_path):
    host = tree(tmp_path, etc__subuid="other:100000:65536\n", etc__subgid="x:165536:65536\n")
    assert "--add-subuids 231072-296607 " in namespaces.check_subids(host).fix


def test_subids_may_come_from_a_directory_service(tmp_path):
    host = tree(tmp_path, etc__nsswitch="", **{"etc__nsswitch.conf": "subid: sss\n"})
    assert namespaces.check_subids(host).status == "ok"


def test_newuidmap_missing_and_not_setuid(tmp_path):
    host = tree(tmp_path)
    result = namespaces.check_id_maps(host, "newuidmap")
    assert (result.status, result.exit_code) == ("fail", 114)
    assert result.fix == "sudo apt-get install uidmap"
    place = install(host, "newuidmap")
    result = namespaces.check_id_maps(host, "newuidmap")
    assert (result.status, result.fix) == ("fail", f"sudo chmod u+s {place}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can own a setuid program of root's")
def test_newuidmap_setuid_on_a_nosuid_mount(tmp_path):
    host = tree(tmp_path, proc__self__mounts=f"tmpfs {tmp_path} tmpfs rw,nosuid 0 0\n")
    install(host, "newuidmap", 0o4755)
    assert "nosuid" in namespaces.check_id_maps(host, "newuidmap").found
    (tmp_path / "proc/self/mounts").write_text(f"tmpfs {tmp_path} tmpfs rw 0 0\n")
    assert namespaces.check_id_maps(host, "newuidmap").status == "ok"


def test_no_new_privileges(tmp_path):
    host = tree(tmp_path, proc__self__status="Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t0\n")
    assert namespaces.check_no_new_privileges(host).exit_code == 114
    host = tree(tmp_path, proc__self__status="Name:\tx\nNoNewPrivs:\t0\n")
    assert namespaces.check_no_new_privileges(host).status == "ok"


@pytest.mark.parametrize(
    ("file", "value", "fix"),
    [
        ("user__max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("kernel__unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ],
)
def test_user_namespaces_forbidden_by_a_setting(tmp_path, file, value, fix):
    host = tree(tmp_path, **{"proc__sys__" + file: value + "\n"})
    result = namespaces.check_user_namespaces(host)
    assert result.exit_code == 114
    assert fix in result.fix


def test_user_namespaces_are_tried(tmp_path):
    text = "unshare: unshare failed: Operation not permitted\n"
    host = tree(tmp_path, answer(1, stderr=text))
    assert namespaces.check_user_namespaces(host).status == "ok"  # nothing to try it with
    install(host, "unshare")
    result = namespaces.check_user_namespaces(host)
    assert result.status == "fail"
    assert "Operation not permitted" in result.found
    assert "outside of the chroot" in result.fix


def test_user_namespaces_forbidden_by_apparmor(tmp_path):
    host = tree(
        tmp_path,
        answer(1, stderr="unshare: write failed /proc/self/uid_map: Operation not permitted\n"),
        proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n",
    )
    assert namespaces.check_apparmor(host).status == "warn"
    install(host, "unshare")
    fix = "kernel.apparmor_restrict_unprivileged_userns=0"
    assert fix in namespaces.check_user_namespaces(host).fix


def test_apparmor_profile_for_podman(tmp_path):
    host = tree(
        tmp_path,
        proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n",
        etc__apparmor__podman="",
    )
    place = install(host, "podman")
    profiles = tmp_path / "etc/apparmor.d"
    profiles.mkdir()
    profile = "abi <abi/4.0>,\nprofile podman {} flags=(unconfined) {{\n  userns,\n}}\n"
    (profiles / "podman").write_text(profile.format("/usr/bin/other"))
    assert namespaces.check_apparmor(host).status == "warn"
    (profiles / "podman").write_text(profile.format(place))
    assert namespaces.check_apparmor(host).status == "ok"


def test_root_is_refused(tmp_path):
    host = Host(env={}, uid=0, user="root", capture=answer())
    assert namespaces.check_user(host).exit_code == 114
    assert namespaces.check_user(tree(tmp_path)).status == "ok"


def test_tun(tmp_path):
    host = tree(tmp_path)
    result = kernel.check_tun(host)
    assert (result.exit_code, result.fix) == (115, "sudo modprobe tun")
    (tmp_path / "dev/net").mkdir(parents=True)
    (tmp_path / "dev/net/tun").write_text("")
    assert kernel.check_tun(host).status == "ok"


UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
HYBRID = (
    "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
)


@pytest.mark.parametrize(
    ("mounts", "controllers", "runtime", "status"),
    [
        (UNIFIED, "cpu\n", "crun", "ok"),
        (HYBRID, "hugetlb\n", "crun", "fail"),
        (HYBRID, "hugetlb\n", "runc", "warn"),
        (HYBRID, "\n", "crun", "warn"),
        ("tmpfs /sys/fs/cgroup tmpfs ro 0 0\n", "", "crun", "warn"),
    ],
)
def test_cgroup_versions(tmp_path, mounts, controllers, runtime, status):
    where = "sys__fs__cgroup__unified__cgroup.controllers"
    host = tree(tmp_path, proc__self__mounts=mounts, **{where: controllers})
    result = kernel.check_cgroup_version(host, runtime)
    assert result.status == status
    assert result.exit_code == (116 if status == "fail" else 0)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("podman version 4.3.1", (4, 3, 1)),
        ("podman version 5.8.6\n", (5, 8, 6)),
        ("podman version 5.0.0-rc2", (5, 0, 0)),
        ("podman version 4.3", (4, 3)),
        ("", ()),
    ],
)
def test_podman_version(said, version):
    assert programs.podman_version(said) == version


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("podman version 3.4.4", "fail"),
        ("podman version 4.2.0", "fail"),
        ("podman version 4.3.1", "ok"),
        ("podman version 10.0.0", "ok"),
        ("what?", "fail"),
    ],
)
def test_podman_too_old(tmp_path, said, status):
    host = tree(tmp_path, answer(stdout=said))
    install(host, "podman")
    result, version = programs.check_podman(host)
    assert result.status == status
    assert result.exit_code == (113 if status == "fail" else 0)
    assert bool(version) == (status == "ok")


def test_podman_missing(tmp_path):
    result, version = programs.check_podman(tree(tmp_path))
    assert (result.exit_code, version) == (113, ())
    assert result.fix == "sudo apt-get install podman"


@pytest.mark.parametrize(
    ("version", "helper", "package"),
    [((4, 3, 1), "slirp4netns", "slirp4netns"), ((5, 4, 2), "pasta", "passt")],
)
def test_network_helper_of_the_generation(tmp_path, version, helper, package):
    host = tree(tmp_path)
    result = programs.check_network_helper(host, version)
    assert (result.exit_code, result.fix) == (115, f"sudo apt-get install {package}")
    install(host, helper)
    assert programs.check_network_helper(host, version).status == "ok"


def test_static_program(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert programs.is_static(str(script))
    assert programs.is_static(str(tmp_path / "missing"))
    assert not programs.is_static("/bin/sh")


def parsed(**changes: object) -> Engine:
    document = json.loads(json.dumps(INFO))
    for name, value in changes.items():
        part, _, key = name.partition("_")
        document[part][key] = value
    return parse_info(json.dumps(document).encode())


def test_info_is_read():
    assert parse_info(json.dumps(INFO).encode()) == Engine(
        driver="overlay",
        graph_root="/home/tester/.local/share/containers/storage",
        run_root="/run/user/1002/containers",
        is_native=True,
        controllers=("cpu", "memory", "pids"),
        mapped_ids=65537,
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"host": {}, "store": {}}', "null"])
def test_refuses_info_that_is_none(text):
    with pytest.raises(ValueError):
        parse_info(text.encode())


def test_engine_that_fails_is_explained(tmp_path):
    text = "cannot clone: No space left on device\nError: cannot re-exec process\n"
    result, info = engine.check_engine(tree(tmp_path, answer(125, stderr=text)))
    assert (result.exit_code, info) == (114, None)
    assert "user.max_user_namespaces" in result.fix


def test_engine_with_a_single_id(tmp_path):
    document = json.loads(json.dumps(INFO))
    document["host"]["idMappings"]["uidmap"] = [{"container_id": 0, "host_id": 1002, "size": 1}]
    result, _ = engine.check_engine(tree(tmp_path, answer(stdout=json.dumps(document))))
    assert (result.exit_code, result.fix) == (114, "podman system migrate")


def test_runroot_of_another_runtime_dir(tmp_path):
    host = tree(tmp_path)
    assert engine.check_run_root(host, parsed()).status == "ok"
    result = engine.check_run_root(host, parsed(store_runRoot="/tmp/rd2/containers"))
    assert result.status == "warn"
    assert result.fix == "export XDG_RUNTIME_DIR=/tmp/rd2"


def test_controllers_missing():
    result = engine.check_controllers(parsed(host_cgroupControllers=["pids"]))
    assert result.status == "warn"
    assert "cpu, memory;" in result.found
    assert engine.check_controllers(parsed()).status == "ok"


def test_storage_kinds(tmp_path):
    host = tree(tmp_path, proc__self__mounts="/dev/sda1 / ext4 rw 0 0\nsrv:/h /nfs nfs4 rw 0 0\n")
    assert engine.check_storage(host, parsed()).status == "ok"
    vfs = engine.check_storage(host, parsed(store_graphDriverName="vfs"))
    assert vfs.status == "warn"
    assert "copies its whole image" in vfs.found
    fuse = parsed(store_graphStatus={"Native Overlay Diff": "false"})
    assert "fuse-overlayfs" in engine.check_storage(host, fuse).found


def test_storage_on_a_network_file_system(tmp_path):
    host = tree(
        tmp_path, proc__self__mounts=f"/dev/sda1 / ext4 rw 0 0\ns:/h {tmp_path} nfs4 rw 0 0\n"
    )
    assert engine.check_storage(host, parsed(store_graphRoot=f"{tmp_path}/s")).status == "warn"


def test_longest_mount_point_wins(tmp_path):
    mounts = (
        "a / ext4 rw 0 0\nb /home tmpfs rw 0 0\nc /home/a\\040b nfs rw 0 0\nd /hom vfat rw 0 0\n"
    )
    host = tree(tmp_path, proc__self__mounts=mounts)
    for path, kind in (
        ("/home/x", "tmpfs"),
        ("/homer", "ext4"),
        ("/home/a b/c", "nfs"),
        ("/hom", "vfat"),
        ("/", "ext4"),
    ):
        assert file_system_of(host, path).kind == kind


def test_existing_parent(tmp_path):
    assert existing_parent(str(tmp_path / "a/b/c")) == str(tmp_path)
    assert existing_parent("/") == "/"


def test_image_missing(tmp_path):
    host = tree(tmp_path, answer(1))
    result = engine.check_image(host, "localhost/cagewrap:latest")  # the first message makes it
    assert (result.status, result.exit_code, result.fix) == ("warn", 0, "cagewrap image build")
    result = engine.check_image(host, "localhost/other:1")
    assert (result.exit_code, result.fix) == (118, "cagewrap image build --name localhost/other:1")
    assert engine.check_image(tree(tmp_path, answer(0)), "x").status == "ok"


def test_probe_needs_nothing_of_the_image():
    argv = probe_args("img", "crun", "/usr/bin/catatonit", network=False)
    assert "--pull=never" in argv
    assert argv[argv.index("--network") + 1] == "none"
    assert argv[-1] == "img"
    assert "--network" not in probe_args("img", "crun", "/x", network=True)


def test_home(tmp_path):
    host = tree(tmp_path)
    assert check_home(host).status == "ok"
    for env in ({}, {"HOME": "relative"}, {"HOME": "/nonexistent"}):
        broken = Host(env=env, uid=host.uid, user=host.user, capture=host.capture)
        assert check_home(broken).exit_code == 119


def test_runtime_dir_of_another(tmp_path):
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/nonexistent"}
    host = Host(env=env, uid=os.getuid(), user="me", capture=answer())
    assert check_runtime_dir(host).exit_code == 119
    env["XDG_RUNTIME_DIR"] = "/"
    host = Host(env=env, uid=os.getuid() + 1, user="me", capture=answer())
    assert check_runtime_dir(host).exit_code == 119


def test_runtime_dir_with_a_path_too_long_for_sockets(tmp_path):
    place = tmp_path / ("long" * 20)
    place.mkdir()
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(place)}
    result = check_runtime_dir(Host(env=env, uid=os.getuid(), user="me", capture=answer()))
    assert result.exit_code == 119
    assert "is longer than" in result.found


def test_runtime_dir_that_outlives_a_reboot(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        mounts = f"a / tmpfs rw 0 0\n/dev/sda1 {short} ext4 rw 0 0\n"
        base = tree(tmp_path, proc__self__mounts=mounts)
        env = {**base.env, "XDG_RUNTIME_DIR": short}
        host = Host(env=env, uid=os.getuid(), user="me", capture=answer(), root=str(tmp_path))
        assert check_runtime_dir(host).status == "warn"


def test_cwd_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = check_cwd(tree(tmp_path))
    assert (result.exit_code, result.fix) == (119, "cd ~")


def test_results_cannot_be_changed():
    with pytest.raises(AttributeError):
        passed("a", "b", "c").status = "fail"
    assert CheckResult.__slots__

"""The OCI process document, and the shell gate for words that JSON cannot carry."""

import json
import subprocess

import pytest

from cagewrap.errors import UnsupportedError
from cagewrap.runtimes.base import ExecCall
from cagewrap.runtimes.oci import runtime
from cagewrap.runtimes.process import (
    GATE,
    Limit,
    Process,
    capability_names,
    gate_script,
    is_plain,
    process_document,
)

PROCESS = Process(
    argv=(b"sh", b"", "ü".encode()),
    env=(b"A=1", b"B="),
    cwd=b"/w x",
    uid=0,
    gid=0,
    umask=0o027,
    limits=(Limit("RLIMIT_NOFILE", 10, 20),),
    bounding=0x800405FB,
)
# What podman's default bounding set is on Debian 12 (mask seen in /proc/1/status of a cage).
PODMAN_CAPABILITIES = [
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
    "CAP_SETUID", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SETFCAP",
]  # fmt: skip


def test_capabilities_are_named_by_their_bits():
    assert capability_names(0x800405FB) == PODMAN_CAPABILITIES
    assert capability_names(0) == []


def test_document_of_root_has_what_the_container_may():
    document = json.loads(process_document(PROCESS))
    assert document["args"] == ["sh", "", "ü"]
    assert document["env"] == ["A=1", "B="]
    assert document["cwd"] == "/w x"
    assert document["user"] == {"uid": 0, "gid": 0, "umask": 0o027}
    assert document["rlimits"] == [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}]
    assert document["capabilities"]["effective"] == PODMAN_CAPABILITIES
    assert document["terminal"] is False
    assert "consoleSize" not in document


def test_document_of_a_user_has_no_effective_capability():
    from dataclasses import replace

    process = replace(PROCESS, uid=1002, gid=1002, size=(24, 80))
    document = json.loads(process_document(process))
    assert document["capabilities"]["bounding"] == PODMAN_CAPABILITIES
    assert document["capabilities"]["effective"] == []
    assert document["consoleSize"] == {"height": 24, "width": 80}


def test_plain_is_utf8():
    assert is_plain((b"a", "ü\n".encode(), b""))
    assert not is_plain((b"a", b"\xff"))


def test_gate_sets_every_byte_of_the_environment(tmp_path):
    values = {
        b"PLAIN": b"1",
        b"QUOTES": b"a'b\"c\\ $X `id`\n\t",
        b"BYTES": bytes(range(1, 256)),
        b"EMPTY": b"",
        b"not-a-name": b"dropped",
    }
    from dataclasses import replace

    env = tuple(name + b"=" + value for name, value in values.items())
    script = tmp_path / "script"
    script.write_bytes(gate_script(replace(PROCESS, env=env)))
    gate = [word.replace("/proc/self/fd/3", str(script)) for word in GATE]
    done = subprocess.run(
        [*gate, "/usr/bin/env", "-0"], env={}, capture_output=True, check=True, close_fds=False
    )
    found = dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)
    del values[b"not-a-name"]
    assert {name: found.get(name) for name in values} == values
    done = subprocess.run(
        [*gate, "/bin/sh", "-c", "umask"], env={}, capture_output=True, check=True
    )
    assert done.stdout.strip() == b"0027"


CALL = ExecCall(container_id="cid", pid_file="/p", log_file="/l")


def test_exec_args_name_a_document_or_the_words():
    crun = runtime("crun")
    assert crun.exec_args("/run/crun", ExecCall("cid", "/p", "/l", process_file="/d"))[-3:] == (
        "--process", "/d", "cid",
    )  # fmt: skip
    words = crun.exec_args(
        "/run/crun",
        ExecCall("cid", "/p", "/l", argv=("a", "-b", ""), cwd="/w", user="1:2", preserved_fds=1),
    )
    assert words[-10:] == (
        "--preserve-fds", "1", "--user", "1:2", "--cwd", "/w", "cid", "a", "-b", "",
    )  # fmt: skip
    assert runtime("runc").state_dir("/run/user/1") == "/run/user/1/runc"


def test_refuses_an_unknown_runtime():
    with pytest.raises(UnsupportedError):
        runtime("krun")

"""The OCI process document, and the shell gate for words that JSON cannot carry."""

import json
import os
import subprocess

import pytest

from cagewrap.errors import UnsupportedError
from cagewrap.runtimes.base import ExecCall
from cagewrap.runtimes.oci import runtime
from cagewrap.runtimes.process import (
    Limit,
    Process,
    capability_names,
    is_plain,
    process_document,
    split_at_gate,
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

    process = PROCESS._replace(uid=1002, gid=1002, size=(24, 80))
    document = json.loads(process_document(process))
    assert document["capabilities"]["bounding"] == PODMAN_CAPABILITIES
    assert document["capabilities"]["effective"] == []
    assert document["consoleSize"] == {"height": 24, "width": 80}


def test_plain_is_utf8():
    assert is_plain((b"a", "ü\n".encode(), b""))
    assert not is_plain((b"a", b"\xff"))


def run_gate(tmp_path, process):
    """What comes out of a process that prints, run as the runtime would run it."""
    document, script = split_at_gate(process)
    file = tmp_path / "script"
    file.write_bytes(script)
    argv = [word.decode().replace("/proc/self/fd/3", str(file)) for word in document.argv]
    env = dict(entry.split(b"=", 1) for entry in document.env)
    assert is_plain((*document.argv, *document.env, document.cwd))
    return subprocess.run(argv, env=env, cwd=document.cwd, capture_output=True, check=True).stdout


def test_gate_sets_every_byte_of_the_environment(tmp_path):
    values = {
        b"PLAIN": b"1",
        b"QUOTES": b"a'b\"c\\ $X `id`\n\t\xff",
        b"BYTES": bytes(range(1, 256)),
        b"EMPTY": b"",
        b"not-a-name": b"a shell drops it",
    }
    env = tuple(name + b"=" + value for name, value in values.items())
    out = run_gate(tmp_path, PROCESS._replace(argv=(b"/usr/bin/env", b"-0"), env=env, cwd=b"/"))
    found = dict(entry.split(b"=", 1) for entry in out.split(b"\0") if entry)
    del values[b"not-a-name"]
    assert {name: found.get(name) for name in values} == values


def test_gate_sets_every_byte_of_the_arguments(tmp_path):
    words = (b"", b"-n", b"\xff'\xfe", b"a\nb", b"", b"$X", bytes(range(1, 256)), b"")
    argv = (b"/usr/bin/printf", b"%s|", *words)
    assert run_gate(tmp_path, PROCESS._replace(argv=argv, cwd=b"/")) == b"|".join((*words, b""))


def test_gate_enters_a_directory_of_any_name(tmp_path):
    directory = os.fsencode(tmp_path) + b"/a'\xff"
    os.mkdir(directory)
    assert run_gate(tmp_path, PROCESS._replace(argv=(b"/bin/pwd",), cwd=directory)) == (
        directory + b"\n"
    )


CALL = ExecCall(container_id="cid", pid_file="/p", log_file="/l", process_file="/d")


def test_exec_args_name_the_document():
    for name in ("crun", "runc"):
        assert runtime(name).exec_args("/run", CALL)[-3:] == ("--process", "/d", "cid")
    held = CALL._replace(preserved_fds=1)
    words = ("--preserve-fds", "1", "--process", "/d", "cid")
    assert runtime("crun").exec_args("/run", held)[-5:] == words
    assert runtime("runc").state_dir("/run/user/1") == "/run/user/1/runc"


def test_refuses_an_unknown_runtime():
    with pytest.raises(UnsupportedError):
        runtime("krun")

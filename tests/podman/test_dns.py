"""A kept cage asks the right name server after the host's resolv.conf has changed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .cages import Cage, seconds_until

LOOKUP = "import socket,sys; print(socket.gethostbyname('name.example'))"


@contextmanager
def name_server(address: str, answer: str) -> Iterator[None]:
    """A name server (run as root, port 53) that knows one address for every name."""
    program = f"""
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(({address!r}, 53)); print('up', flush=True)
while True:
    query, peer = s.recvfrom(4096)
    end = query.index(b'\\0', 12) + 5
    kind = struct.unpack('!H', query[end-4:end-2])[0]
    count = 1 if kind == 1 else 0
    head = query[:2] + struct.pack('!HHHHH', 0x8180, 1, count, 0, 0)
    record = b'\\xc0\\x0c' + struct.pack('!HHIH', 1, 1, 1, 4) + socket.inet_aton({answer!r})
    s.sendto(head + query[12:end] + record * count, peer)
"""
    # An address of this machine that is not on 127/8, as a resolver in the local network is.
    subprocess.run(["sudo", "-n", "ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    command = ["sudo", "-n", "/usr/bin/python3", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            subprocess.run(["sudo", "-n", "kill", str(server.pid)], check=True)
            drop = ["sudo", "-n", "ip", "address", "del", f"{address}/32", "dev", "lo"]
            subprocess.run(drop, check=True)


def write_resolv_conf(text: str) -> None:
    """Change the host's file as a network manager does: a new file renamed over the old."""
    script = "cat > /etc/resolv.conf.new && mv /etc/resolv.conf.new /etc/resolv.conf"
    subprocess.run(["sudo", "-n", "sh", "-c", script], input=text.encode(), check=True)


@pytest.fixture
def resolv_conf() -> Iterator[None]:
    before = Path("/etc/resolv.conf").read_text()
    yield
    write_resolv_conf(before)


def test_dns_follows_the_hosts_resolv_conf(cage: Cage, resolv_conf: None) -> None:
    flags = ("--network", "open")
    with name_server("198.51.100.1", "192.0.2.1"), name_server("198.51.100.2", "192.0.2.2"):
        write_resolv_conf("nameserver 198.51.100.1\n")
        assert cage.text("python3", "-c", LOOKUP, flags=flags) == "192.0.2.1\n"
        write_resolv_conf("search corp.example\nnameserver 198.51.100.2\n")
        # slirp4netns keeps what it read for a second or two.
        seconds_until(
            lambda: cage.text("python3", "-c", LOOKUP, flags=flags) == "192.0.2.2\n", within_s=5
        )
        assert "corp.example" in cage.text("cat", "/etc/resolv.conf", flags=flags)
        assert cage.record()["network"] == "open"

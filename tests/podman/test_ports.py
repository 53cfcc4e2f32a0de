"""Ports of a running cage: out to this machine's loopback, and in from it; nothing else."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from .cages import Cage, podman, wait_until

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b'from the cage ' + self.path.encode())
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
print('up', flush=True)
server.serve_forever()
"""


def networks() -> list[tuple[str, ...]]:
    """Each way a cage of this podman can be connected."""
    found: list[tuple[str, ...]] = [("--network", "none"), ("--network", "open")]
    if podman("--version").stdout.split()[-1].split(".")[0] >= "5":
        # The helper that is not this podman's default.
        found.append(("--network", "open", "--podman-arg=--network=slirp4netns"))
    return found


@contextmanager
def serving(cage: Cage, port: int, *flags: str, address: str = "127.0.0.1") -> Iterator[None]:
    """A server in the cage, as an agent starts one."""
    command = ("python3", "-c", SERVER, address, str(port))
    with cage.popen(*command, flags=flags, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            process.kill()


def get(port: int, path: str = "/x", address: str = "127.0.0.1") -> bytes:
    """One request, read to its end."""
    with closing(socket.create_connection((address, port), timeout=5)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.partition(b"\r\n\r\n")[2]


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("flags", networks(), ids=lambda flags: "-".join(flags[1:]).strip("-"))
def test_port_of_a_running_cage_is_reached(cage: Cage, flags: tuple[str, ...]) -> None:
    outside = free_port()
    with serving(cage, 3000, *flags):
        done = cage.cagewrap("port", ".", f"{outside}:3000", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["done"][0]["what"] == "published"
        assert get(outside) == b"from the cage /x"
        assert cage.cagewrap("port", ".", f"{outside}:3000").code == 0, "twice is once"
        for _ in range(20):
            assert get(outside) == b"from the cage /x"
    cage.stop()
    with pytest.raises(OSError):
        get(outside)


def test_oauth_callback_on_loopback_is_reached_on_the_same_port(cage: Cage) -> None:
    """A login server inside listens on 127.0.0.1 and tells the browser that very port."""
    port = free_port()
    with serving(cage, port):
        assert cage.cagewrap("port", ".", str(port)).code == 0
        answer = get(port, "/callback?code=a%20b&state=1")
        assert answer == b"from the cage /callback?code=a%20b&state=1"


def test_published_port_comes_back_with_the_cage(cage: Cage) -> None:
    outside = free_port()
    flags = ("--publish", f"{outside}:3000")
    with serving(cage, 3000, *flags):
        assert get(outside) == b"from the cage /x"
    cage.stop()
    with serving(cage, 3000, *flags):
        assert get(outside) == b"from the cage /x"


def test_published_port_is_on_loopback_alone(cage: Cage) -> None:
    outside = free_port()
    with serving(cage, 3000, "--publish", f"{outside}:3000"):
        lines = subprocess.run(
            ["ss", "-ltnH", f"sport = :{outside}"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    assert [line.split()[3] for line in lines] == [f"127.0.0.1:{outside}"]


def test_taken_port_is_an_error_and_the_cage_goes_on(cage: Cage) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cage.text("true")
        done = cage.cagewrap("port", ".", f"{port}:3000")
        assert done.code == 120
        assert b"in use" in done.err
        assert cage.text("echo", "on") == "on\n"


def test_port_starts_a_stopped_cage(cage: Cage) -> None:
    cage.text("true")
    cage.stop()
    assert cage.cagewrap("port", cage.name(), f"{free_port()}:3000").code == 0
    assert cage.keeper() != 0


@pytest.mark.parametrize("flags", networks(), ids=lambda flags: "-".join(flags[1:]).strip("-"))
def test_host_port_leads_to_a_server_of_the_host(cage: Cage, flags: tuple[str, ...]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    got = b""
                    while chunk := connection.recv(65536):
                        got += chunk
                    connection.sendall(b"%d" % len(got))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        client = (
            "import socket; c = socket.create_connection(('127.0.0.1', 8080)); "
            "c.sendall(b'x' * 3000000); c.shutdown(1); print(c.recv(99).decode())"
        )
        ports = ("--host-port", f"8080:{port}")
        for _ in range(2):
            assert cage.text("python3", "-c", client, flags=(*flags, *ports)) == "3000000\n"
            cage.stop()
        thread.join(5)


def test_no_other_port_of_the_host_is_reached(cage: Cage) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        attempts = f"""
import socket
for address in ("127.0.0.1", "10.0.2.2", "169.254.1.2", "host.containers.internal"):
    try:
        socket.create_connection((address, {port}), timeout=2)
        print("REACHED", address)
    except OSError:
        print("refused")
"""
        assert cage.text("python3", "-c", attempts, flags=("--network", "open")) == "refused\n" * 4


def test_connections_survive_a_half_close_and_many_at_once(cage: Cage) -> None:
    outside = free_port()
    echo = (
        "import socketserver\n"
        "class H(socketserver.BaseRequestHandler):\n"
        " def handle(self):\n"
        "  got = b''\n"
        "  while c := self.request.recv(65536): got += c\n"
        "  self.request.sendall(got[::-1])\n"
        "class S(socketserver.ThreadingTCPServer): request_queue_size = 100\n"
        "s = S(('127.0.0.1', 3000), H); print('up', flush=True); s.serve_forever()\n"
    )
    flags = ("--publish", f"{outside}:3000")
    with cage.popen("python3", "-c", echo, flags=flags, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        results: list[bool] = []

        def one(number: int) -> None:
            data = bytes([number]) + b"x" * 100_000
            with closing(socket.create_connection(("127.0.0.1", outside), timeout=20)) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                got = b""
                while chunk := client.recv(65536):
                    got += chunk
            results.append(got == data[::-1])

        threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert results == [True] * 50
        server.kill()
    assert wait_until(lambda: cage.inside_pids() == [], 3)

"""What carries a port, in a process of its own as the keeper runs it, with real sockets."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from cagewrap.keeper import forward

MB = 1 << 20
TIMEOUT_S = 20
SERVE = """
import resource, socket, sys
from cagewrap.keeper import forward
fd, port, files = map(int, sys.argv[1:])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
forward.serve(socket.socket(fileno=fd), port)
"""


@dataclass
class Forward:
    """A running one: the port it listens on, and its process."""

    port: int
    process: subprocess.Popen[bytes]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def status(self, name: str) -> int:
        """A number of /proc/PID/status, such as VmRSS in KiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name + ":")).split()[1])

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def seconds_of_cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def forwarding(port: int, files: int = 0) -> Iterator[Forward]:
    """To a port of the loopback. files: how many descriptors it may have, 0 for as many as we."""
    with forward.listen_on_host(0) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(listener.fileno()), str(port), str(files)],
            pass_fds=[listener.fileno()],
        )
        outside = listener.getsockname()[1]
    with process:
        try:
            yield Forward(outside, process)
            assert process.poll() is None, "it ended by itself"
        finally:
            process.kill()


@contextmanager
def serving(handle: Callable[[socket.socket], None], address: str = "127.0.0.1") -> Iterator[int]:
    """A server with a thread for each connection; its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=1000) as server:

        def handle_one(connection: socket.socket) -> None:
            with connection, suppress(ConnectionError):  # tests reset theirs
                connection.settimeout(TIMEOUT_S)
                handle(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=handle_one, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def read_all(connection: socket.socket) -> bytes:
    found = bytearray()
    while chunk := connection.recv(65536):
        found += chunk
    return bytes(found)


def echo(connection: socket.socket) -> None:
    while chunk := connection.recv(65536):
        connection.sendall(chunk)


def answer_at_the_end(connection: socket.socket) -> None:
    connection.sendall(read_all(connection)[::-1])


def wait_until(condition: Callable[[], object], within_s: float = TIMEOUT_S) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def fill(connection: socket.socket) -> int:
    """Send until nothing more is taken for a while; how many bytes that were."""
    connection.settimeout(1)
    sent = 0
    try:
        while True:
            sent += connection.send(b"x" * MB)
    except TimeoutError:
        return sent


def test_ten_megabytes_both_ways_at_once() -> None:
    data = os.urandom(10 * MB)
    with serving(echo) as port, forwarding(port) as forwarded, forwarded.connect() as client:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        assert read_all(client) == data
        sender.join(TIMEOUT_S)
        assert wait_until(lambda: forwarded.descriptors() <= 5), "what has ended is closed"


def test_half_close_is_carried_and_the_answer_comes_back() -> None:
    data = os.urandom(3 * MB)
    with (
        serving(answer_at_the_end) as port,
        forwarding(port) as forwarded,
        forwarded.connect() as client,
    ):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == data[::-1]


def test_server_that_ends_first_can_still_be_sent_to() -> None:
    got: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        connection.sendall(b"mine")
        connection.shutdown(socket.SHUT_WR)
        got.append(read_all(connection))

    with serving(handle) as port, forwarding(port) as forwarded, forwarded.connect() as client:
        assert read_all(client) == b"mine"
        client.sendall(b"yours")
        client.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: got == [b"yours"])


def test_refused_dial_closes_the_connection() -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        with forwarding(unused.getsockname()[1]) as forwarded:
            for _ in range(3):
                with forwarded.connect() as client:
                    assert client.recv(1) == b""


def test_server_on_the_ipv6_loopback_alone_is_reached() -> None:
    with (
        serving(answer_at_the_end, "::1") as port,
        forwarding(port) as forwarded,
        forwarded.connect() as client,
    ):
        client.sendall(b"abc")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"cba"


def test_three_hundred_at_once_are_all_served_by_one_thread() -> None:
    """The last ones wait until there is room."""
    with (
        serving(echo) as port,
        forwarding(port, files=2 * forward.CONNECTIONS + 16) as forwarded,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(forwarded.connect()) for _ in range(300)]
        for client in clients:
            client.sendall(b"hello")
        for client in clients[: forward.CONNECTIONS]:
            assert client.recv(9) == b"hello"
        assert forwarded.status("Threads") == 1
        assert forwarded.descriptors() <= 2 * forward.CONNECTIONS + 5
        clients[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            clients[-1].recv(9)
        clients[-1].settimeout(TIMEOUT_S)
        for client in clients[: forward.CONNECTIONS]:
            client.close()
        for client in clients[forward.CONNECTIONS :]:
            assert client.recv(9) == b"hello"


def test_too_many_for_its_descriptors_do_not_end_it() -> None:
    with (
        serving(echo) as port,
        forwarding(port, files=20) as forwarded,
        ExitStack() as stack,
    ):
        for _ in range(60):
            stack.enter_context(forwarded.connect())
        assert wait_until(lambda: forwarded.descriptors() >= 18)
        before = forwarded.seconds_of_cpu()
        time.sleep(0.5)
        assert forwarded.seconds_of_cpu() - before < 0.2, "it tries without a pause"
        stack.close()
        with forwarded.connect() as client:
            client.sendall(b"on")
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b"on"


def test_who_reads_slowly_does_not_make_it_grow() -> None:
    go_on = threading.Event()
    got: list[int] = []

    def handle(connection: socket.socket) -> None:
        connection.sendall(b"!")
        go_on.wait(TIMEOUT_S)
        got.append(len(read_all(connection)))

    with serving(handle) as port, forwarding(port) as forwarded, forwarded.connect() as client:
        assert client.recv(1) == b"!"
        before = forwarded.status("VmRSS")
        sent = fill(client)
        assert forwarded.status("VmRSS") - before < 1024
        busy = forwarded.seconds_of_cpu()
        time.sleep(0.3)
        assert forwarded.seconds_of_cpu() - busy < 0.1, "it turns while nobody reads"
        client.settimeout(TIMEOUT_S)
        go_on.set()
        client.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: got == [sent])


def test_one_that_waits_does_not_hold_up_the_others() -> None:
    def handle(connection: socket.socket) -> None:
        if connection.recv(1) == b"e":
            echo(connection)
        time.sleep(TIMEOUT_S)

    with serving(handle) as port, forwarding(port) as forwarded, forwarded.connect() as stuck:
        fill(stuck)
        with forwarded.connect() as client:
            client.sendall(b"e")
            began = time.monotonic()
            for _ in range(100):
                client.sendall(b"ping")
                assert client.recv(9) == b"ping"
            assert time.monotonic() - began < 5


@pytest.mark.parametrize("who", ["client", "server"])
def test_reset_is_a_reset_on_the_other_side(who: str) -> None:
    """And no clean end: half an answer must not be taken for a whole one."""
    ended: list[BaseException | bytes] = []
    met = threading.Event()

    def look(connection: socket.socket) -> None:
        try:
            ended.append(connection.recv(9))
        except OSError as error:
            ended.append(error)

    def handle(connection: socket.socket) -> None:
        assert connection.recv(1) == b"a"
        connection.sendall(b"b")
        met.wait(TIMEOUT_S)
        if who == "server":
            reset(connection)
        else:
            look(connection)

    with serving(handle) as port, forwarding(port) as forwarded, forwarded.connect() as client:
        client.sendall(b"a")
        assert client.recv(1) == b"b"
        met.set()
        if who == "client":
            reset(client)
        else:
            look(client)
        assert wait_until(lambda: ended)
        assert isinstance(ended[0], ConnectionResetError)
        assert wait_until(lambda: forwarded.descriptors() <= 5)


def test_answer_of_a_server_that_stops_reading_arrives() -> None:
    """As a web server refuses a large upload."""

    def handle(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"too large")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.2)

    with serving(handle) as port, forwarding(port) as forwarded, forwarded.connect() as client:
        with pytest.raises(OSError):  # noqa: PT012
            while True:
                client.sendall(b"x" * MB)
        assert client.recv(99) == b"too large"


def test_client_that_leaves_during_the_dial_leaves_nothing() -> None:
    with serving(echo) as port, forwarding(port) as forwarded:
        for _ in range(200):
            reset(forwarded.connect())
        with forwarded.connect() as client:
            client.sendall(b"on")
            assert client.recv(9) == b"on"
            assert wait_until(lambda: forwarded.descriptors() <= 7)


def test_silent_connections_cost_no_time() -> None:
    with serving(echo) as port, forwarding(port) as forwarded, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(forwarded.connect()).shutdown(socket.SHUT_WR)
        for _ in range(20):
            stack.enter_context(forwarded.connect())
        time.sleep(0.3)
        before = forwarded.seconds_of_cpu()
        time.sleep(0.5)
        assert forwarded.seconds_of_cpu() - before <= 0.05


def test_taken_port_is_an_error() -> None:
    with forward.listen_on_host(0) as listener, pytest.raises(OSError):
        forward.listen_on_host(listener.getsockname()[1])


def test_limit_of_connections_fits_the_usual_limit_of_descriptors() -> None:
    assert 2 * forward.CONNECTIONS + 16 <= 1024 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1]

"""What a broker carries: bodies of any length, as they come, both ways, and how each side ends."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from brokering import Api, Head, Wire, brokered, eventually, get, post

MEGABYTE = 1 << 20


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (*chunks, b""))


def test_events_arrive_one_by_one_and_byte_for_byte(tmp_path: Path) -> None:
    events = [b"event: ping\ndata: {}\n\n", b"\x00\xff\r\n0\r\n\r\n", "ä".encode() * 5000]
    heard = threading.Semaphore(0)

    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nRequest-Id: req_1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for event in events:
            wire.send(b"%x\r\n%s\r\n" % (len(event), event))
            assert heard.acquire(timeout=5), "the event did not arrive by itself"
        wire.send(b"0\r\n\r\n")

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(post(b"{}"))
        head = wire.head()
        assert head.status == 200
        assert head.get("content-type") == "text/event-stream"
        assert head.get("request-id") == "req_1"
        for event in events:
            got = b""
            while len(got) < len(event):
                got += wire.chunk()
            assert got == event
            heard.release()
        assert wire.chunk() == b""


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_hundred_megabytes_each_way(tmp_path: Path, framing: str) -> None:
    block = bytes(range(256)) * 4096
    count = 100

    def head_of(first: str) -> bytes:
        how = (
            f"Content-Length: {count * MEGABYTE}"
            if framing == "length"
            else "Transfer-Encoding: chunked"
        )
        return f"{first}\r\nHost: x\r\n{how}\r\n\r\n".encode()

    def send_all(wire: Wire, first: str) -> None:
        wire.send(head_of(first))
        for _ in range(count):
            wire.send(block if framing == "length" else b"%x\r\n%s\r\n" % (len(block), block))
        if framing == "chunked":
            wire.send(b"0\r\n\r\n")

    def hash_all(wire: Wire, head: Head) -> str:
        found = hashlib.sha256()
        if framing == "length":
            left = int(head.get("content-length") or 0)
            while left:
                data = wire.receive(min(left, MEGABYTE))
                left -= len(data)
                found.update(data)
        else:
            assert head.get("transfer-encoding") == "chunked"
            for data in iter(wire.chunk, b""):
                found.update(data)
        return found.hexdigest()

    seen: list[str] = []

    def talk(wire: Wire) -> None:
        seen.append(hash_all(wire, wire.head()))
        send_all(wire, "HTTP/1.1 200 OK")

    wanted = hashlib.sha256(block * count).hexdigest()
    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        send_all(wire, "POST /v1/messages HTTP/1.1")
        assert hash_all(wire, wire.head()) == wanted
        assert seen == [wanted]
        found = broker.count()
        assert (found.sent_bytes, found.received_bytes) == (count * MEGABYTE, count * MEGABYTE)


def test_a_thousand_requests_on_one_connection(tmp_path: Path) -> None:
    with Api() as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        began = time.monotonic()
        for number in range(1000):
            wire.send(post(b"%d" % number) if number % 2 else get())
            head = wire.head()
            assert (head.status, wire.body(head)) == (200, b"hello")
        assert api.connections == 1
        assert time.monotonic() - began < 10, "small packets wait for each other"
        assert broker.count().requests == 1000
        assert broker.count().answered_2xx == 1000


def test_requests_in_a_row_are_answered_in_their_order(tmp_path: Path) -> None:
    def talk(wire: Wire) -> None:
        for _ in range(3):
            body = wire.body(wire.head())
            time.sleep(0.05)
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(post(b"one") + post(b"two") + post(b"three"))
        assert [wire.body(wire.head()) for _ in range(3)] == [b"one", b"two", b"three"]


def test_the_end_of_the_agent_ends_the_request(tmp_path: Path) -> None:
    """In each phase: before the body is whole, before the answer, in the middle of it."""
    ends: list[float] = []
    ready = threading.Semaphore(0)

    def talk(wire: Wire) -> None:
        head = wire.head()
        if head.get("x-phase") != "body":
            wire.body(head)
        if head.get("x-phase") == "answer":
            wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        ready.release()
        try:
            while wire.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        ends.append(time.monotonic())

    with Api(talk) as api, brokered(tmp_path, api.port) as broker:
        for phase in ("body", "silence", "answer"):
            ends.clear()
            with broker.connect() as wire:
                wire.send(
                    get("/v1/messages", "Content-Length: 9", f"X-Phase: {phase}", method="POST")
                )
                wire.send(b"123" if phase == "body" else b"123456789")
                assert ready.acquire(timeout=5)
                if phase == "answer":
                    wire.head()
                began = time.monotonic()
            assert eventually(lambda: bool(ends)), phase
            assert ends[0] - began < 0.5, phase


@pytest.mark.parametrize("how", ["end", "reset"])
@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 100"])
def test_an_answer_that_breaks_off_is_no_whole_answer(
    tmp_path: Path, how: str, framing: str
) -> None:
    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        wire.send(b"5\r\nhello\r\n" if "chunked" in framing else b"hello")
        time.sleep(0.1)
        if how == "reset":
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(post(b"{}"))
        assert wire.head().status == 200
        with pytest.raises(ConnectionResetError):
            wire.rest()
        assert broker.count().failed == 1


def test_an_api_that_says_nothing_and_ends_is_a_bad_gateway(tmp_path: Path) -> None:
    def talk(wire: Wire) -> None:
        wire.body(wire.head())

    with Api(talk) as api, brokered(tmp_path, api.port) as broker:
        head, body = broker.ask(post(b"{}"))
        assert head.status == 502
        assert b"api_error" in body
        assert b"without an answer" in body or b"broke off" in body
        found = broker.count()
        assert (found.failed, found.refused, found.answered_5xx) == (1, 0, 0)


def test_an_answer_may_come_before_the_whole_request(tmp_path: Path) -> None:
    """As when a request is too large. The API reads no more of it, and closes."""

    def talk(wire: Wire) -> None:
        wire.head()
        wire.receive(1000)
        wire.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        wire.sock.shutdown(socket.SHUT_WR)
        assert eventually(lambda: not wire.is_open())

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(get("/v1/messages", "Transfer-Encoding: chunked", method="POST"))

        def keep_sending() -> None:
            try:
                for _ in range(200):
                    wire.send(b"%x\r\n%s\r\n" % (MEGABYTE, bytes(MEGABYTE)))
            except OSError:
                return

        sender = threading.Thread(target=keep_sending)
        sender.start()
        head = wire.head()
        assert (head.status, wire.body(head)) == (413, b"big")
        sender.join(5)
        assert not sender.is_alive()


def test_who_does_not_read_holds_up_the_other_side(tmp_path: Path) -> None:
    sent = 0
    block = bytes(MEGABYTE)

    def talk(wire: Wire) -> None:
        nonlocal sent
        wire.body(wire.head())
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 209715200\r\n\r\n")
        for _ in range(200):
            wire.send(block)
            sent += 1

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(post(b"{}"))
        head = wire.head()
        time.sleep(1)
        assert sent < 30, "the broker keeps what nobody reads"
        left = int(head.get("content-length") or 0)
        while left:
            left -= len(wire.receive(min(left, MEGABYTE)))
        assert eventually(lambda: sent == 200)


def test_expect_100_continue(tmp_path: Path) -> None:
    def talk(wire: Wire) -> None:
        head = wire.head()
        assert head.get("expect") is None
        assert wire.body(head) == b"hello"
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(get("/v1/messages", "Content-Length: 5", "Expect: 100-continue", method="POST"))
        assert wire.head().status == 100
        wire.send(b"hello")
        head = wire.head()
        assert (head.status, wire.body(head)) == (200, b"ok")
    with Api() as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(get("/v1/files", "Content-Length: 5", "Expect: 100-continue", method="POST"))
        assert wire.head().status == 403
        assert api.connections == 0


def test_answers_without_a_body(tmp_path: Path) -> None:
    answers = {
        "HEAD": b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nX-A: b\r\n\r\n",
        "204": b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",
        "304": b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nX-A: b\r\n\r\n',
    }

    def talk(wire: Wire) -> None:
        for answer in answers.values():
            wire.head()
            wire.send(answer)

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(get("/", method="HEAD"))
        head = wire.head()
        assert (head.status, head.get("content-length"), head.get("x-a")) == (200, "1234", "b")
        for status in (204, 304):
            wire.send(get())
            head = wire.head()
            assert (head.status, head.get("x-a")) == (status, "b")
        assert wire.unread == b""
        assert api.connections == 1


def test_trailers_pass_both_ways(tmp_path: Path) -> None:
    def talk(wire: Wire) -> None:
        head = wire.head()
        assert wire.body(head) == b"hello"
        assert wire.trailers == b"x-sum: 1\r\n"
        wire.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nok\r\n0\r\nx-checksum: 2\r\n\r\n"
        )

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(get("/v1/messages", "Transfer-Encoding: chunked", method="POST"))
        wire.send(b"5\r\nhello\r\n0\r\nx-sum: 1\r\nAuthorization: Bearer mine\r\n\r\n")
        assert wire.body(wire.head()) == b"ok"
        assert wire.trailers == b"x-checksum: 2\r\n"


def test_an_old_client_gets_a_body_that_ends_with_the_connection(tmp_path: Path) -> None:
    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"he", b"llo"))

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        head = wire.head()
        assert head.get("transfer-encoding") is None
        assert wire.rest() == b"hello"


def test_a_connection_that_the_api_closed_while_idle_is_not_used(tmp_path: Path) -> None:
    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Api(talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        for number in range(20):
            wire.send(post(b"x") if number % 2 else get())
            head = wire.head()
            assert (head.status, wire.body(head)) == (200, b"ok"), number
            time.sleep(0.01)
        assert api.connections == 20


def test_idle_connections_make_room_for_one_more(tmp_path: Path) -> None:
    with Api() as api, brokered(tmp_path, api.port) as broker:
        wires = [broker.connect() for _ in range(200)]
        for wire in wires[150:]:
            wire.send(get())
        for wire in wires[150:]:
            assert wire.head().status == 200
        for wire in wires:
            wire.close()

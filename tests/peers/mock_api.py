"""A Messages API on loopback for the real agents, and a Responses API for those that speak that.

What it says is up to the prompt: see scripted.py.

In a test: `with MockApi() as api`. By hand: `python mock_api.py [PORT]`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import responses_api
from scripted import Answer, Json, Request, answer, as_events, as_message, fail, next_id

ANSWERED = ("/v1/messages", responses_api.ROUTE)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self._note({})
        self._send(200, "application/json", b"")

    def do_GET(self) -> None:
        request = self._note({})
        if request.route == "/v1/models":
            self._send_json(200, {"data": [], "has_more": False})
        else:
            self._send_failure(fail(404, "not_found_error"))

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        request = self._note(json.loads(self.rfile.read(length) or b"{}"))
        if request.route in ANSWERED:
            self._send_answer(request)
        elif request.route == "/v1/messages/count_tokens":
            self._send_json(200, {"input_tokens": 42})
        else:
            self._send_json(200, {})

    def log_message(self, *_: object) -> None:
        """Requests are kept by the server instead."""

    def _note(self, body: Json) -> Request:
        header = self.headers.get
        request = Request(
            method=self.command,
            path=self.path,
            authorization=header("authorization") or "",
            api_key=header("x-api-key") or "",
            beta=header("anthropic-beta") or "",
            body=body,
        )
        self.server.note(request)
        return request

    def _send_answer(self, request: Request) -> None:
        reply = answer(request)
        model = request.body.get("model", "")
        if reply.status != 200:
            self._send_failure(reply)
        elif request.body.get("stream"):
            # A reader that hangs up half way is an interrupt, not a fault.
            with contextlib.suppress(ConnectionError):
                if request.route == responses_api.ROUTE:
                    events = responses_api.as_events(reply.content, reply.spread_s)
                else:
                    events = as_events(reply, model)
                self._send_stream(events)
        else:
            self._send_json(200, as_message(reply, model))

    def _send_stream(self, events: Iterator[Json]) -> None:
        self.close_connection = True  # unless we come to the end
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("request-id", f"req_{next_id()}")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            frame = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = False

    def _send_failure(self, reply: Answer) -> None:
        text = f"answered {reply.status} as scripted"
        self._send_json(
            reply.status, {"type": "error", "error": {"type": reply.error, "message": text}}
        )

    def _send_json(self, status: int, value: Json) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("request-id", f"req_{next_id()}")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, *, verbose: bool) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.verbose = verbose
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.faults: list[str] = []

    def note(self, request: Request) -> None:
        with self.lock:
            self.requests.append(request)
        if self.verbose:
            shown = request.prompt[-200:]
            print(
                request.method,
                request.path,
                request.credentials,
                repr(shown),
                file=sys.stderr,
                flush=True,
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong for the test; a client that is gone is nothing wrong."""
        if not isinstance(sys.exception(), ConnectionError):
            with self.lock:
                self.faults.append(traceback.format_exc())


@dataclass
class MockApi:
    """The server as a context manager. What it saw until now: `requests` and `faults`."""

    port: int = 0
    verbose: bool = False
    _server: Server = field(init=False, repr=False)
    _thread: threading.Thread = field(init=False, repr=False)

    def __enter__(self) -> Self:
        self._server = Server(self.port, verbose=self.verbose)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Request]:
        with self._server.lock:
            return list(self._server.requests)

    @property
    def messages(self) -> list[Request]:
        """The requests for an answer."""
        return [request for request in self.requests if request.route in ANSWERED]

    @property
    def turns(self) -> list[Request]:
        """Those of the conversation itself, not the agent's own questions, such as for a title."""
        return [request for request in self.messages if request.body.get("tools")]

    @property
    def faults(self) -> list[str]:
        with self._server.lock:
            return list(self._server.faults)


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with MockApi(port, verbose=True) as api:
        print(api.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()

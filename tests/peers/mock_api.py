"""A Messages API on loopback for the real agents: it says what the prompt asks it to say.

And a Responses API, for those that speak that.

The last line of the last user message that starts with @@ is the script of the answer:

    @@bash COMMAND      call the tool that runs a command, whatever the agent calls it
    @@tool NAME JSON    call any tool
    @@slow SECONDS      200 words, spread over so many seconds
    @@history           how many messages the request carried: grows as long as the history is kept
    @@big BYTES         a text of so many bytes
    @@status CODE       fail with that HTTP status

A tool's result with no script beside it is answered by "RESULT[ok]: …" or "RESULT[err]: …",
anything else by "echo: …". A token that contains BAD is refused.

In a test: `with MockApi() as api`. By hand: `python mock_api.py [PORT]`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import responses_api

Json = dict[str, Any]

SLOW_WORDS = 200
SHELLS = ("Bash", "bash", responses_api.SHELL)
_ids = itertools.count(1)


# --- what is asked --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One request as the server saw it."""

    method: str
    path: str
    authorization: str
    api_key: str
    beta: str
    body: Json

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    @property
    def credentials(self) -> str:
        return self.authorization + self.api_key

    @property
    def messages(self) -> list[Json]:
        if "input" in self.body:
            return responses_api.messages(self.body["input"])
        messages: list[Json] = self.body.get("messages", [])
        return messages

    @property
    def shell(self) -> str:
        """The name of the tool that runs a command."""
        names = [tool.get("name", "") for tool in self.body.get("tools", [])]
        return next((name for name in names if name in SHELLS), "Bash")

    @property
    def system(self) -> str:
        return "\n".join(texts(self.body.get("system", "")))

    @property
    def prompt(self) -> str:
        """The last user message as one text. The agent adds reminders of its own to it."""
        return "\n".join(texts(self._last_content()))

    @property
    def script(self) -> str:
        """The line that says what to answer; "" for none."""
        lines = [line for line in self.prompt.splitlines() if line.startswith("@@")]
        return lines[-1][2:] if lines else ""

    @property
    def tool_results(self) -> list[Json]:
        """Those in the last user message. After an interrupt the next prompt stands beside them."""
        content = self._last_content()
        return [] if isinstance(content, str) else blocks(content, "tool_result")

    def _last_content(self) -> str | list[Json]:
        users = [message for message in self.messages if message.get("role") == "user"]
        return users[-1]["content"] if users else ""


def blocks(content: Sequence[Json], kind: str) -> list[Json]:
    return [block for block in content if block.get("type") == kind]


def texts(content: str | Sequence[Json]) -> list[str]:
    """Text comes as a string or as blocks."""
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in blocks(content, "text")]


# --- what is answered -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A message to send: its content, in how many pieces, over how many seconds; or a failure."""

    content: tuple[Json, ...] = ()
    spread_s: float = 0.0
    status: int = 200
    error: str = ""

    @property
    def stop_reason(self) -> str:
        return "tool_use" if blocks(self.content, "tool_use") else "end_turn"


def say(text: str, spread_s: float = 0.0) -> Answer:
    return Answer(({"type": "text", "text": text},), spread_s)


def call(name: str, arguments: Json) -> Answer:
    tool_use = {
        "type": "tool_use",
        "id": f"toolu_{next(_ids):08d}",
        "name": name,
        "input": arguments,
    }
    return Answer(({"type": "text", "text": f"calling {name}"}, tool_use))


def fail(status: int, error: str = "api_error") -> Answer:
    return Answer(status=status, error=error)


def answer(request: Request) -> Answer:
    if "BAD" in request.credentials:
        return fail(401, "authentication_error")
    if request.script:
        verb, _, rest = request.script.partition(" ")
        return run_script(verb, rest, request)
    if request.tool_results:
        return say("\n".join(map(describe_result, request.tool_results)))
    return say(f"echo: {last_line(request.prompt)}")


def run_script(verb: str, rest: str, request: Request) -> Answer:
    match verb:
        case "bash":
            if request.shell == responses_api.SHELL:
                return call(request.shell, {responses_api.COMMAND: rest})
            return call(request.shell, {"command": rest, "description": "as scripted"})
        case "tool":
            name, _, arguments = rest.partition(" ")
            return call(name, json.loads(arguments or "{}"))
        case "slow":
            return say(" ".join(f"word{number}" for number in range(SLOW_WORDS)), float(rest))
        case "history":
            return say(f"HISTORY {len(request.messages)}")
        case "big":
            return say("x" * int(rest))
        case "status":
            return fail(int(rest))
        case _:
            raise ValueError(f"unknown script: @@{verb}")


def describe_result(block: Json) -> str:
    outcome = "err" if block.get("is_error") else "ok"
    return f"RESULT[{outcome}]: " + "\n".join(texts(block.get("content", "")))


def last_line(prompt: str) -> str:
    """What was typed: the agent puts what it adds before it."""
    return prompt.rpartition("\n")[2]


# --- how it is sent -------------------------------------------------------------------------------


def as_message(answer: Answer, model: str) -> Json:
    return {
        "id": f"msg_{next(_ids):08d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(answer.content),
        "stop_reason": answer.stop_reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 20,
        },
    }


def as_events(answer: Answer, model: str) -> Iterator[Json]:
    """The same message as a stream. Sleeps between the pieces of a slow one."""
    message = as_message(answer, model)
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    yield {"type": "ping"}
    for index, block in enumerate(answer.content):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in as_deltas(block, answer.spread_s):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": answer.stop_reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def as_deltas(block: Json, spread_s: float) -> Iterator[Json]:
    if block["type"] == "tool_use":
        yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    elif not spread_s:
        yield {"type": "text_delta", "text": block["text"]}
    else:
        words = block["text"].split(" ")
        for word in words:
            yield {"type": "text_delta", "text": word + " "}
            time.sleep(spread_s / len(words))


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
        self.send_header("request-id", f"req_{next(_ids):08d}")
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
        self.send_header("request-id", f"req_{next(_ids):08d}")
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

"""What the API on loopback is asked, and what it answers: what the prompt asks it to say.

The last line of the last user message that starts with @@ is the script of the answer:

    @@bash COMMAND      call the tool that runs a command, whatever the agent calls it
    @@tool NAME JSON    call any tool
    @@slow SECONDS      200 words, spread over so many seconds
    @@history           how many messages the request carried: grows as long as the history is kept
    @@big BYTES         a text of so many bytes
    @@status CODE       fail with that HTTP status

A tool's result with no script beside it is answered by "RESULT[ok]: …" or "RESULT[err]: …",
anything else by "echo: …". A token that contains BAD is refused.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import responses_api

Json = dict[str, Any]

SLOW_WORDS = 200
SHELLS = ("Bash", "bash", responses_api.SHELL)
_ids = itertools.count(1)


def next_id() -> str:
    """A number nothing else has."""
    return f"{next(_ids):08d}"


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
        "id": f"toolu_{next_id()}",
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
        "id": f"msg_{next_id()}",
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

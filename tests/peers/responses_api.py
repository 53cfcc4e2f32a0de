"""The Responses API, which codex speaks, in terms of the Messages API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

ROUTE = "/v1/responses"
# What they call the tool that runs a command, and its argument.
SHELL, COMMAND = "exec_command", "cmd"


def messages(items: Sequence[Json]) -> list[Json]:
    """A request's input as messages."""
    return [message for item in items if (message := as_message(item))]


def as_message(item: Json) -> Json | None:
    match item["type"]:
        case "message" if item["role"] in ("user", "assistant"):
            return {"role": item["role"], "content": as_blocks(item["content"])}
        case "function_call":
            block = {"type": "tool_use", "name": item["name"], "input": item["arguments"]}
            return {"role": "assistant", "content": [block]}
        case "function_call_output":
            content = as_blocks(item["output"])
            return {"role": "user", "content": [{"type": "tool_result", "content": content}]}
    return None


def as_blocks(content: str | Sequence[Json]) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": part["text"]} for part in content if "text" in part]


def as_items(content: Sequence[Json]) -> list[Json]:
    """An answer's content as output items."""
    return [
        {
            "type": "function_call",
            "id": f"fc_{block['id']}",
            "call_id": f"call_{block['id']}",
            "name": block["name"],
            "arguments": json.dumps(block["input"]),
        }
        if block["type"] == "tool_use"
        else {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": block["text"], "annotations": []}],
        }
        for block in content
    ]


def as_events(content: Sequence[Json], spread_s: float) -> Iterator[Json]:
    """The answer as a stream. Sleeps between the pieces of a slow one."""
    response = {"id": "resp_1", "object": "response", "output": []}
    yield {"type": "response.created", "response": response}
    items = as_items(content)
    for index, item in enumerate(items):
        begun = {**item, "content": []} if item["type"] == "message" else item
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        for delta in as_deltas(item, spread_s):
            where = {"item_id": item["id"], "output_index": index, "content_index": 0}
            yield {"type": "response.output_text.delta", **where, "delta": delta}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}
    yield {"type": "response.completed", "response": {**response, "output": items, "usage": usage}}


def as_deltas(item: Json, spread_s: float) -> Iterator[str]:
    if item["type"] != "message":
        return
    text = item["content"][0]["text"]
    for word in text.split(" ") if spread_s else ():
        yield word + " "
        time.sleep(spread_s / (text.count(" ") + 1))
    if not spread_s:
        yield text

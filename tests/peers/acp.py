"""Drives agents by the Agent Client Protocol, through the client library that editors use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_lines import ANSWER_S, Json, JsonLines
from places import NODE, PEERS, Place

CLIENT = Path(__file__).parent / "node" / "acp_client.mjs"
SDK = PEERS / "@agentclientprotocol/sdk/dist/acp.js"


class AcpError(Exception):
    """The agent refused a request."""


class Client(JsonLines):
    """A client with the agent running, and all that came from it until now.

    The agent is killed at the end, unless it has ended by then.
    """

    def __init__(
        self, place: Place, agent: Sequence[str | Path], log: Path, **env: str | Path
    ) -> None:
        self.place = place
        self.updates: list[Json] = []
        self.permissions: list[Json] = []
        self.asked: list[Json] = []
        self.exit: Json = {}
        self._answers: dict[int, Json] = {}
        self._last_id = 0
        argv = [NODE, CLIENT, SDK, place.project, *agent]
        more = {name: str(value) for name, value in env.items()}
        super().__init__(
            argv, "/", place.env | more, log
        )  # what runs in the project is the agent's

    def __exit__(self, *how: object) -> None:
        if self.process.poll() is None and not self.exit:
            self.signal("SIGKILL")
            self.wait_for(lambda: bool(self.exit), 10)
        super().__exit__(*how)

    # --- requests ---------------------------------------------------------------------------------

    def begin(self, method: str, **params: Any) -> int:
        """Send a request; answer() has its result."""
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def answer(self, number: int, within_s: float = ANSWER_S) -> Json:
        came = self.wait_for(lambda: number in self._answers or bool(self.exit), within_s)
        assert came, f"no answer in {within_s} s; {self}"
        assert number in self._answers, f"ended without an answer; {self}"
        answer = self._answers[number]
        if "error" in answer:
            raise AcpError(answer["error"])
        result: Json = answer["result"]
        return result

    def call(self, method: str, **params: Any) -> Json:
        return self.answer(self.begin(method, **params))

    def new_session(
        self, mode: str = "", cwd: Path | None = None, offered: Json | None = None, **more: Any
    ) -> str:
        """The usual beginning: the session's id. offered: the capabilities of the client."""
        hello = self.call("initialize", protocolVersion=1, clientCapabilities=offered or {})
        assert hello["protocolVersion"] == 1
        made = self.call("newSession", cwd=str(cwd or self.place.project), mcpServers=[], **more)
        session: str = made["sessionId"]
        if mode:
            self.call("setSessionMode", sessionId=session, modeId=mode)
        return session

    def ask(self, session: str, text: str) -> Json:
        return self.answer(self.begin_prompt(session, text))

    def begin_prompt(self, session: str, text: str) -> int:
        return self.begin("prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    # --- the end ----------------------------------------------------------------------------------

    def signal(self, name: str) -> None:
        """Send a signal to the agent: to the one process that was started."""
        self.send({"signal": name})

    def close(self) -> None:
        """Close the agent's stdin."""
        self.send({"close": True})

    def ended(self, within_s: float) -> bool:
        """Whether the agent ends in time. Then `exit` says how."""
        return self.wait_for(lambda: bool(self.exit), within_s)

    # --- what came --------------------------------------------------------------------------------

    def texts(self, kind: str = "agent_message_chunk") -> str:
        return "".join(
            update["content"].get("text", "")
            for update in self.updates
            if update["sessionUpdate"] == kind
        )

    def heard(self, text: str, within_s: float = ANSWER_S) -> bool:
        """Whether the agent says it in time."""
        return self.wait_for(lambda: text in self.texts(), within_s)

    def __str__(self) -> str:
        return f"exit {self.exit}, said {self.texts()!r}, {super().__str__()}"

    def keep(self, message: Json) -> None:
        if "update" in message:
            self.updates.append(message["update"])
        elif "permission" in message:
            self.permissions.append(message["permission"])
        elif "asked" in message:
            self.asked.append(message)
        elif "exit" in message:
            self.exit = message["exit"]
        else:
            self._answers[message["id"]] = message


def cancel(client: Client, session: str, prompt: int) -> tuple[Json, float]:
    """How a running prompt ends when it is cancelled, and how long that takes."""
    asked = time.monotonic()
    client.begin("cancel", sessionId=session)
    result = client.answer(prompt)
    return result, time.monotonic() - asked

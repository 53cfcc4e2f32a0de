"""What is different in a cage, and what a new container must not change."""

from __future__ import annotations

import asyncio
from pathlib import Path

from driving import Callbacks, ask, connected, drive
from mock_api import MockApi
from places import Caged, Place


def test_the_agent_has_a_home_of_its_own(caged: Caged, callbacks: Callbacks) -> None:
    home = Path(caged.env["HOME"])
    (home / "secret").write_text("the owner's\n")
    script = "@@bash ls -A ~; echo mine > ~/note && cat ~/note && cat ~/secret; echo $HOME"

    async def work() -> str:
        async with connected(caged, **callbacks.options()) as client:
            turn = await ask(client, script)
            return turn.texts[-1]

    said = drive(work())
    assert "mine" in said
    assert "the owner's" not in said
    assert said.splitlines()[-1] == str(home)
    made = {path.name for path in home.iterdir()} - {"secret", ".local"}
    assert made <= {".claude"}
    assert [path.name for path in home.glob(".claude/*")] in ([], ["projects"]), "conversations"


def test_several_clients_start_at_once(place: Place, callbacks: Callbacks) -> None:
    """In the cage the first of them makes the container."""

    async def one(number: int) -> str:
        async with connected(place, **callbacks.options()) as client:
            turn = await ask(client, f"@@bash echo {number} > {number}.txt && cat {number}.txt")
            return turn.texts[-1]

    async def work() -> list[str]:
        return await asyncio.gather(*map(one, range(4)))

    assert drive(work()) == [f"RESULT[ok]: {number}" for number in range(4)]
    assert (place.project / "3.txt").read_text() == "3\n"


def test_resume_after_the_cage_was_stopped(caged: Caged, api: MockApi) -> None:
    async def begin() -> str:
        async with connected(caged) as client:
            turn = await ask(client, "remember the bittern")
            return turn.result.session_id

    async def resume(session: str) -> None:
        async with connected(caged, resume=session) as client:
            await ask(client, "@@history")

    session = drive(begin())
    caged.cagewrap("stop")
    drive(resume(session))
    assert "remember the bittern" in str(api.messages[-1].messages[0])

"""What Claude's files cost a message of which nothing has changed. The warm path is the product."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from cagewrap.keeper.claudehome import ClaudeHome
from cagewrap.keeper.conversations import Conversations
from cagewrap.keeper.request import Request
from cagewrap.paths import Paths
from cagewrap.sessions import Record
from cagewrap.transcripts import slug

CONVERSATIONS = 100
SKILLS = 40
ALLOWED_S = 0.004
"""CPU time, of the quickest of many; 1.2 ms when it was written."""


def quickest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(30):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def test_a_message_costs_little(tmp_path: Path) -> None:
    home, project = tmp_path / "owner", str(tmp_path / "owner/project")
    os.makedirs(project)
    transcripts = home / ".claude/projects" / slug(project)
    transcripts.mkdir(parents=True)
    for _ in range(CONVERSATIONS):
        line = json.dumps({"type": "user", "cwd": project}) + "\n"
        (transcripts / f"{uuid.uuid4()}.jsonl").write_text(line)
    for number in range(SKILLS):
        skill = home / f".claude/skills/s{number}/SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text("x" * 1000)
    paths = Paths(
        str(home), str(tmp_path / "c"), str(tmp_path / "state"), str(tmp_path / "r"), str(tmp_path)
    )
    os.makedirs(paths.home_dir("name"))
    record = Record(
        name="name", project=project, session="", created_at=0.0, image="", runtime="",
        identity="root", network="none", config_hash="", home=str(home), run_args=(),
        binds=((project, project),),
    )  # fmt: skip
    request = Request(
        (b"claude",), {b"PWD": project.encode()}, project.encode(), False, None, (), (), (), ()
    )
    notes: list[str] = []
    cares = (
        Conversations(record, paths, notes.append),
        ClaudeHome(record, paths, notes.append, lambda _: False, lambda _: True),
    )

    def message() -> None:
        for care in cares:
            care.before(request, notes.append, lambda: None)
        for care in cares:
            care.environment(request, {})

    message()
    inside = Path(paths.home_dir("name")) / ".claude"
    assert len(list((inside / "projects").rglob("*.jsonl"))) == CONVERSATIONS
    assert len(list((inside / "skills").iterdir())) == SKILLS
    assert quickest(message) < ALLOWED_S
    assert quickest(cares[0].poll) < ALLOWED_S
    assert notes == []

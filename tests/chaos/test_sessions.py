"""Twenty sessions at once in one project, each committing: right answers, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from arena import ours, podman, until
from workshop import ME, Workshop

SESSIONS = 20
BOTH = ("session-0", "session-1")
"""Two that commit to the same branch as well."""
SCRIPT = (
    ME
    + """
session=$2
oid=$(git commit-tree -p "$(git rev-parse HEAD)" -m "$session" 'HEAD^{tree}')
git update-ref "refs/heads/$session" "$oid"
echo up
if [ -n "$3" ]; then
    while [ ! -e go ]; do sleep 0.01; done
    git update-ref "refs/heads/both" "$oid"
fi
mkdir -p .claude .zed; echo "$session" >.claude/agent.json; echo "$session" >.zed/tasks.json
read -r a
cat .claude/agent.json; echo "$((a * a)) $oid"
"""
)


def test_twenty_sessions_commit_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ours()
    shop = Workshop(tmp_path)
    arena = shop.arena
    began = time.monotonic()
    names = [f"session-{number}" for number in range(SESSIONS)]
    messages = [
        arena.start(name, SCRIPT, "-", name, "both" if name in BOTH else "") for name in names
    ]
    both = [message for message in messages if message.session in BOTH]
    assert until(lambda: all(message.has_said(b"up") for message in both), 60)
    (shop.project / "go").touch()
    oids: dict[str, str] = {}
    for number, (name, message) in enumerate(zip(names, messages, strict=True)):
        code, said = message.answer(b"%d\n" % number)
        message.end()
        assert code == 0, arena.errors.read_text()[-3000:]
        _, held, answer = said.decode().splitlines()
        square, oids[name] = answer.split()
        assert (held, int(square)) == (name, number**2)
    seconds = time.monotonic() - began
    heads = dict(
        line.split()
        for line in shop.git("for-each-ref", "--format=%(refname:short) %(objectname)").splitlines()
    )
    assert {name: heads[name] for name in names} == oids
    shop.commits |= set(oids.values())
    conflicts = [oid for name, oid in heads.items() if name.startswith("cagewrap/")]
    assert {heads["both"], *conflicts} == {oids[name] for name in BOTH}
    assert "refs/heads/both was changed by you and by the agent" in arena.errors.read_text()
    assert shop.wrong() == []
    listed = podman("ps", "--quiet", "--filter", "label=cagewrap.name").split()
    assert len(listed) >= SESSIONS
    removed = arena.verb("rm", "--all", "--force")
    assert removed.returncode == 0, removed.stderr
    until(lambda: not arena.leftovers(before), 10)
    with capsys.disabled():
        print(f"\n{SESSIONS} sessions answered after {seconds:.1f} s")
    assert arena.leftovers(before) == []
    assert shop.litter() == []
    assert shop.wrong() == []
    assert list((tmp_path / "state/cagewrap/projects").glob("*")) == []
    assert not (shop.project / ".zed").exists()

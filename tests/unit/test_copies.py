"""Copies of the owner's files in a private HOME."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cagewrap.claudetree import find_originals, may_copy, memory_originals
from cagewrap.copies import Copies, Finder
from cagewrap.protected import Place


class Room:
    """An owner's ~/.claude, and a private HOME. `bring` is what a message does."""

    def __init__(self, root: Path) -> None:
        self.owner = root / "owner"
        self.config = self.owner / ".claude"
        self.home = root / "home"
        self.secret = self.owner / ".ssh"
        self.project = self.owner / "src/proj"
        for path in (self.config, self.home, self.secret, self.project):
            path.mkdir(parents=True)
        (self.secret / "id").write_text("secret")
        self.may_read = may_copy((Place(str(self.secret), "x"),), lambda: {str(self.project)})
        self.copies = Copies(str(self.home), {}, self.may_read)

    def bring(self, max_files: int = 100) -> list[str]:
        self.copies = Copies(str(self.home), dict(self.copies.known), self.may_read)
        finder = Finder(self.may_read, max_files, 1 << 20)
        found = find_originals(finder, str(self.config), str(self.owner), str(self.project))
        self.copies.bring(found, lambda _, data: data)
        return finder.notes + self.copies.notes

    def put(self, name: str, text: str = "host") -> Path:
        path = self.config / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def theirs(self, name: str) -> Path:
        return self.home / ".claude" / name


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(Path(os.path.realpath(tmp_path)))


def test_instructions_and_extensions_come_and_nothing_else(room: Room) -> None:
    wanted = ["CLAUDE.md", "AGENTS.md", "keybindings.json", "skills/x/SKILL.md", "agents/a.md"]
    wanted += ["commands/c.md", "rules/r.md", "output-styles/o.md", "hooks/h.sh", "statusline.sh"]
    for name in wanted:
        room.put(name)
    others = [".credentials.json", "projects/-x/y.jsonl", "history.jsonl", "settings.json"]
    others += ["skills/x/.env", "skills/x/.env.local", "skills/x/.git/config", "sessions/1.json"]
    for name in others:
        room.put(name)
    (room.config / "hooks/h.sh").chmod(0o755)
    assert room.bring() == []
    there = {str(p.relative_to(room.theirs(""))) for p in room.home.rglob("*") if p.is_file()}
    assert there == set(wanted)
    assert os.access(room.theirs("hooks/h.sh"), os.X_OK)
    assert not os.access(room.theirs("CLAUDE.md"), os.X_OK)


def test_instructions_above_the_project(room: Room) -> None:
    (room.owner / "CLAUDE.md").write_text("home")
    (room.owner / "src/AGENTS.md").write_text("src")
    (room.project / "CLAUDE.md").write_text("project")
    (room.owner.parent / "CLAUDE.md").write_text("above HOME")
    room.bring()
    there = {str(p.relative_to(room.home)): p.read_text() for p in room.home.rglob("*.md")}
    assert there == {"CLAUDE.md": "home", "src/AGENTS.md": "src"}


def test_the_owners_change_comes_and_the_agents_stays(room: Room) -> None:
    kept, changed, removed = room.put("CLAUDE.md"), room.put("agents/a.md"), room.put("rules/r.md")
    both = room.put("commands/c.md")
    room.bring()
    room.theirs("CLAUDE.md").write_text("agent")
    room.theirs("commands/c.md").write_text("agent")
    room.theirs("agents/b.md").write_text("agent")
    changed.write_text("host, changed")
    both.write_text("host, changed")
    removed.unlink()
    (note,) = room.bring()
    assert "commands/c.md was changed in the cage, and on the host too" in note
    assert room.theirs("CLAUDE.md").read_text() == "agent"
    assert room.theirs("agents/a.md").read_text() == "host, changed"
    assert room.theirs("commands/c.md").read_text() == "agent"
    assert room.theirs("agents/b.md").read_text() == "agent"
    assert not room.theirs("rules/r.md").exists()
    assert room.bring() == []
    kept.unlink()
    assert room.bring() == []
    assert room.theirs("CLAUDE.md").read_text() == "agent"


def test_what_the_agent_removed_stays_away_until_the_host_changes(room: Room) -> None:
    original = room.put("CLAUDE.md")
    room.bring()
    room.theirs("CLAUDE.md").unlink()
    os.utime(original, (1, 1))
    room.bring()
    assert not room.theirs("CLAUDE.md").exists()
    original.write_text("new")
    room.bring()
    assert room.theirs("CLAUDE.md").read_text() == "new"


def test_nothing_is_read_that_has_not_changed(room: Room) -> None:
    room.put("CLAUDE.md")
    room.bring()
    room.theirs("CLAUDE.md").write_text("agent")
    room.bring()
    assert not room.copies.is_changed


def test_symlinked_dotfiles_are_resolved_unless_they_lead_to_a_secret(room: Room) -> None:
    dotfiles = room.owner / "dotfiles/skills/x"
    dotfiles.mkdir(parents=True)
    (dotfiles / "SKILL.md").write_text("skill")
    (room.owner / "dotfiles/CLAUDE.md").write_text("instructions")
    (room.config / "CLAUDE.md").symlink_to(room.owner / "dotfiles/CLAUDE.md")
    (room.config / "skills").symlink_to(room.owner / "dotfiles/skills")
    (room.config / "AGENTS.md").symlink_to(room.secret / "id")
    (room.config / "agents").symlink_to(room.secret)
    (dotfiles / "loop").symlink_to(room.owner / "dotfiles/skills")
    (room.config / "rules").symlink_to("nowhere")
    notes = room.bring()
    assert room.theirs("CLAUDE.md").read_text() == "instructions"
    assert not room.theirs("CLAUDE.md").is_symlink()
    assert room.theirs("skills/x/SKILL.md").read_text() == "skill"
    assert len(notes) == 2
    assert "secret" not in "".join(
        p.read_text() for p in room.home.rglob("*") if p.is_file() and not p.is_symlink()
    )


def test_a_file_swapped_for_a_secret_after_it_was_judged_is_not_read(room: Room) -> None:
    original = room.put("CLAUDE.md")
    finder = Finder(room.may_read, 100, 1 << 20)
    found = find_originals(finder, str(room.config), str(room.owner), str(room.project))
    original.unlink()
    original.symlink_to(room.secret / "id")
    room.copies.bring(found, lambda _, data: data)
    assert "is not for a cage" in room.copies.notes[0]
    assert not room.theirs("CLAUDE.md").exists()


def test_too_much_is_said(room: Room) -> None:
    for number in range(20):
        room.put(f"skills/{number:02}.md")
    (note,) = room.bring(max_files=5)
    assert "the rest of it is not in the cage" in note
    assert len(os.listdir(room.theirs("skills"))) == 5


@pytest.mark.parametrize("planted", ["symlink", "directory", "fifo", "parent"])
def test_what_an_agent_puts_in_the_way_is_not_followed(room: Room, planted: str) -> None:
    original = room.put("agents/a.md")
    room.bring()
    path = room.theirs("agents/a.md")
    path.unlink()
    outside = room.owner / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("outside")
    if planted == "symlink":
        path.symlink_to(outside / "a.md")
    elif planted == "directory":
        path.mkdir()
    elif planted == "fifo":
        os.mkfifo(path)
    else:
        path.parent.rmdir()
        path.parent.symlink_to(outside)
    original.write_text("new")
    notes = room.bring()
    assert len(notes) == 1
    assert (outside / "a.md").read_text() == "outside"
    original.unlink()
    room.bring()
    assert (outside / "a.md").exists()


def test_memory_of_this_directory_comes_and_of_no_other(room: Room) -> None:
    for slug in ("-x-y", "-x-z"):
        room.put(f"projects/{slug}/memory/MEMORY.md", slug)
    finder = Finder(room.may_read, 100, 1 << 20)

    def memory(projects: object, *cwds: str, known: str = "") -> set[str]:
        state, ours = {"projects": projects}, lambda slug: slug == known
        return set(memory_originals(finder, str(room.config), cwds, state, ours))

    mine = {".claude/projects/-x-y/memory/MEMORY.md"}
    assert memory({"/x/y": {}, "/x/z": {}}, "/x/y") == mine
    assert memory({"/x/y": {}, "/x-y": {}}, "/x/y") == set()
    assert memory({"/x/z": {}}, "/x/y") == set()
    assert memory(None, "/x/y") == set()
    assert memory(None, "/x/y", known="-x-y") == mine
    assert memory({"/x-y": {}}, "/x/y", known="-x-y") == set()


def test_nothing_comes_from_where_an_agent_works(room: Room) -> None:
    """It could put a symlink to anything of the owner's there."""
    taxes = room.owner / "taxes.md"
    taxes.write_text("private")
    (room.project / "commands").mkdir()
    (room.project / "commands/x.md").symlink_to(taxes)
    (room.project / "commands/y.md").write_text("from an agent")
    (room.config / "commands").symlink_to(room.project / "commands")
    (room.config / "CLAUDE.md").symlink_to(room.project / "commands/y.md")
    (room.config / "rules").symlink_to(room.owner / "rules")
    assert "commands, which no cage gets" in " ".join(room.bring())
    assert [path for path in room.home.rglob("*") if path.is_file()] == []

"""What is held back: the tables, git's configuration, private copies, files that are put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cagewrap import beneath
from cagewrap.held import Held, find, printable
from cagewrap.holding import names, repositories, tree
from cagewrap.holding.directory import HeldDirectory
from cagewrap.holding.hostgit import named_by_git, parents
from cagewrap.holding.walk import Walk
from cagewrap.holding.watch import Watch

NEVER = 1 << 62


def write(path: Path, text: str = "x\n", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


# --- the tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "known", "expected"),
    [
        ("a/.claude/settings.json", False, True),
        ("a/b/.mcp.json", False, True),
        (".mcp.json", False, False),
        ("a/mise.toml", False, False),
        ("a/mise.toml", True, True),
        ("x.code-workspace", True, True),
        ("a/settings.json", True, False),
        ("a/.claude/agents/x.md", True, False),
    ],
)
def test_which_files_below_the_root_count(path: str, known: bool, expected: bool) -> None:
    assert names.is_nested(path, known=known) == expected


@pytest.mark.parametrize(
    "path", [*names.FILES, *names.DIRECTORIES, "a/.mcp.json", "a/.git/config", "a/rust-toolchain"]
)
def test_every_path_has_a_reason(path: str) -> None:
    assert names.why(path) != names.why("nothing/known")


def test_the_page_names_every_path() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/reference/protected-paths.md"
    text = page.read_text()
    other_names = ("lefthook", ".lefthook", "mise", ".mise", ".config/mise")
    for name in (*names.DIRECTORIES, *names.FILES, *names.NESTED, *names.NESTED_KNOWN):
        assert f"`{name}`" in text or name.startswith(other_names), name


# --- git's configuration --------------------------------------------------------------------------

HARMLESS = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
[remote "origin"]
\turl = https://example.org/x.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
[user]
\tname = A B
"""


def test_a_fresh_clone_is_harmless() -> None:
    assert repositories.harmless_config(HARMLESS) == (HARMLESS, [])


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = evil\n",
        "[CORE]\nFSMonitor=evil\n",
        "[core] fsmonitor = evil\n",
        "[core]\n\tsshCommand = evil\n",
        "[core]\n\thooksPath = /tmp\n",
        "[core]\n\tpager = evil\n",
        "[core]\n\tworktree = x::y\n",
        "[include]\n\tpath = /tmp/x\n",
        '[includeIf "gitdir:/"]\n\tpath = /tmp/x\n',
        '[filter "x"]\n\tclean = evil\n',
        '[diff "x"]\n\ttextconv = evil\n',
        '[alias]\n\tst = "!evil"\n',
        '[remote "origin"]\n\turl = ext::evil\n',
        '[remote "origin"]\n\tuploadpack = evil\n',
        "[credential]\n\thelper = evil\n",
        "[gpg]\n\tprogram = evil\n",
        '[submodule "x"]\n\tupdate = !evil\n',
        "[uploadpack]\n\tpackObjectsHook = evil\n",
        "nonsense",
        '[core\n\tfsmonitor = "evil\n',
    ],
)
def test_what_names_a_program_goes(text: str) -> None:
    left, gone = repositories.harmless_config(HARMLESS + text)
    assert gone
    assert "evil" not in left
    assert "/tmp" not in left
    assert repositories.harmless_config(left)[1] == []


def test_what_the_owners_git_names(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / ".gitconfig", "[include]\n\tpath = ~/more\n")
    write(home / "more", f"[include]\n\tpath = {project}/shared/config\n")
    write(
        project / ".git/config",
        "[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../team/config\n",
    )
    found = named_by_git(str(project), str(home), None)
    assert found.hooks == "tools/hooks"
    assert set(found.files) == {"team/config", "shared/config", "HEAD"}, "it may become a bare one"
    write(project / ".git/HEAD", "ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (project / ".git" / name).mkdir()
    found = named_by_git(str(project), str(home), None)
    assert set(found.files) == {"team/config", "shared/config"}
    assert named_by_git(str(project), str(home), found) is found
    assert set(parents(found.files)) == {"team", "shared"}
    write(project / ".git/config", "[core]\n\thooksPath = /elsewhere\n")
    assert named_by_git(str(project), str(home), found).hooks == ""


def test_programs_of_the_project_that_the_owners_git_runs(project: Path, tmp_path: Path) -> None:
    write(project / "tools/strip")
    write(project / "clean.py")
    write(
        project / ".git/config",
        '[filter "n"]\n\tclean = tools/strip %f\n\tsmudge = cat\n\tprocess = git-lfs x\n'
        "[core]\n\tfsmonitor = ./later\n"
        "[diff \"n\"]\n\ttextconv = python3 'clean.py' --x=tools/strip\n"
        "[alias]\n\tx = !tools/strip\n",
    )
    found = named_by_git(str(project), str(tmp_path / "home"), None)
    assert set(found.files) == {"HEAD", "tools/strip", "later", "clean.py"}


# --- private copies -------------------------------------------------------------------------------


@pytest.fixture
def copied(project: Path, tmp_path: Path) -> tuple[HeldDirectory, int, Path, Path]:
    """A copy of a directory: itself, the host's descriptor, both sides."""
    host = project / ".claude"
    write(host / "a")
    write(host / "sub/run", "#!/bin/sh\n", 0o755)
    (host / "link").symlink_to("a")
    held = HeldDirectory(str(tmp_path / "held"), ".claude")
    fd = beneath.open_root(str(host))
    held.create(fd)
    return held, fd, host, Path(held.copy_dir)


def test_a_copy_is_the_same(copied: tuple[HeldDirectory, int, Path, Path]) -> None:
    held, _, _, copy = copied
    assert (copy / "a").read_text() == "x\n"
    assert os.access(copy / "sub/run", os.X_OK)
    assert (copy / "link").readlink() == Path("a")
    assert held.pending() == {}


def test_each_side_gets_its_due(copied: tuple[HeldDirectory, int, Path, Path]) -> None:
    held, fd, host, copy = copied
    write(host / "a", "host\n")
    write(host / "new", "host\n")
    write(copy / "sub/run", "agent\n")
    write(copy / "own", "agent\n")
    held.sync(fd)
    assert (copy / "a").read_text() == "host\n"
    assert (copy / "new").read_text() == "host\n"
    assert set(held.pending()) == {"sub/run", "own"}
    (host / "new").unlink()
    write(host / "sub/run", "host too\n")
    held.sync(fd)
    assert not (copy / "new").exists()
    assert (copy / "sub/run").read_text() == "agent\n"
    assert set(held.pending()) == {"sub/run", "own"}
    again = HeldDirectory(str(Path(held.dir).parents[1]), ".claude")
    assert set(again.pending()) == {"sub/run", "own"}


def test_both_made_the_same_change(copied: tuple[HeldDirectory, int, Path, Path]) -> None:
    held, fd, host, copy = copied
    write(host / "a", "same\n")
    write(copy / "a", "same\n")
    held.sync(fd)
    assert held.pending() == {}


def test_a_large_file_is_left_out(
    copied: tuple[HeldDirectory, int, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, fd, host, copy = copied
    monkeypatch.setattr(tree, "FILE_BYTES", 10)
    write(host / "large", "x" * 100)
    held.sync(fd)
    assert not (copy / "large").exists()
    assert held.pending() == {}


# --- files that are put back ----------------------------------------------------------------------


@pytest.fixture
def watch(project: Path, tmp_path: Path) -> tuple[Watch, int]:
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
    return (
        Watch(str(project), str(tmp_path / "shared"), str(tmp_path / "own")),
        beneath.open_root(str(project)),
    )


def test_a_version_that_was_the_owners_once_is_let_through(
    watch: tuple[Watch, int], project: Path
) -> None:
    one, root = watch
    for text in ("first\n", "second\n"):
        write(project / ".envrc", text)
        one.snapshot(root)
    write(project / ".envrc", "first\n")
    assert one.compare(root) == []
    write(project / ".envrc", "evil\n")
    assert one.compare(root) == [".envrc"]
    assert (project / ".envrc").read_text() == "second\n"


def test_permissions_are_put_back(watch: tuple[Watch, int], project: Path) -> None:
    one, root = watch
    write(project / ".envrc", "mine\n", 0o640)
    one.snapshot(root)
    write(project / ".envrc", "evil\n", 0o777)
    one.compare(root)
    assert (project / ".envrc").stat().st_mode & 0o777 == 0o640


def test_another_process_knows_the_same(
    watch: tuple[Watch, int], project: Path, tmp_path: Path
) -> None:
    one, root = watch
    write(project / ".envrc", "mine\n")
    one.snapshot(root)
    another = Watch(str(project), str(tmp_path / "shared"), str(tmp_path / "other"))
    assert another.compare(root) == []
    write(project / ".envrc", "evil\n")
    assert another.compare(root) == [".envrc"]
    assert (project / ".envrc").read_text() == "mine\n"


def test_a_directory_that_becomes_a_symlink_on_the_way(
    watch: tuple[Watch, int], project: Path, tmp_path: Path
) -> None:
    one, root = watch
    write(tmp_path / "evil/mise.toml", "evil\n")
    one.snapshot(root)
    (project / ".config").symlink_to(tmp_path / "evil")
    assert one.compare(root) == [".config"]
    assert not (project / ".config").is_symlink()


# --- the walk -------------------------------------------------------------------------------------


def test_only_what_is_new_is_looked_at(project: Path, tmp_path: Path) -> None:
    write(project / "a/.mcp.json")
    write(project / "b/.git/config", "[core]\n\tfsmonitor = evil\n")
    write(project / "b/.git/HEAD", "ref: refs/heads/main\n")
    files = str(tmp_path / "files")
    found = Walk(str(project), NEVER, [str(tmp_path / "state")], files).run()
    assert (found.old, found.new, found.tamed) == (["a/.mcp.json"], [], [])
    found = Walk(str(project), 0, [str(tmp_path / "state")], files).run()
    assert (found.old, found.new) == ([], ["a/.mcp.json"])
    assert found.tamed == ["b/.git/config: core.fsmonitor"]
    assert (project / "b/.git/config").read_text() == ""


def test_the_walk_enters_no_symlink_and_no_depth(project: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside/.mcp.json").parent
    (project / "link").symlink_to(outside)
    deep = project
    for _ in range(300):
        deep = deep / "d"
        deep.mkdir()
    found = Walk(str(project), 0, [str(tmp_path / "state")], str(tmp_path / "files")).run()
    assert (found.old, found.new, found.is_whole) == ([], [], True)


def test_a_symlink_to_cagewraps_files_is_taken_out(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "state/cages/x/home/evil/.git/config")
    (project / "docs").symlink_to(tmp_path / "state/cages/x/home/evil")
    (project / "fine").symlink_to("/usr")
    Walk(str(project), 0, [str(tmp_path / "state")], str(tmp_path / "files")).run()
    assert not (project / "docs").is_symlink()
    assert (project / "fine").is_symlink()


# --- review ---------------------------------------------------------------------------------------


def test_nothing_of_an_agents_reaches_the_terminal_as_it_is() -> None:
    assert printable("a\x1b[2Jb\tc\n\u202e") == "a\\x1b[2Jb\tc\n\\u202e"


def test_the_provider_of_a_path() -> None:
    class One:
        def __init__(self, path: str) -> None:
            self.path = path

        def pending(self, *, is_look: bool = True) -> list[Held]:
            return [Held("file", self.path, "why")]

        def count(self) -> int:
            return 1

        def accept(self, path: str) -> str:
            return path

        def drop(self, path: str) -> str:
            return path

    both = (One("a"), One("b"))
    assert find(both, "b") is both[1]

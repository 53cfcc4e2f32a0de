"""git's configuration files: read as git reads them, changed so that git reads the change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cagewrap.gitsync.configrules import is_allowed, is_url
from cagewrap.gitsync.configtext import ConfigRefusedError, change, parse

TEXTS = [
    "[core]\n\tbare = false\n",
    '[remote "origin"]\n\turl = https://x/y.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n',
    '[Core] Bare=TRUE\n[branch "a.b/C"] merge = refs/heads/x ; comment\n',
    '[a]\n\tx = "quoted # not; comment" and \\\n  continued \\"\\\\ \\t end # no\n\ty\n',
    "[a]\nx=1\n[b]\ny=2\n[a]\nx=3\n",
    '# comment\n; another\n\n[a \t"q\\"uo\\\\te"]\n\tk = v',
    "[a]\r\n\tx = 1\r\n[b]\r\n\ty = 2\r\n",
    '[a "b"]\n\tx = "" \n\tz = \n',
    "[old.Style]\n\tx = 1\n",
    "[a]\n\tx = \\\n  1\n",
    "\ufeff[a]\n\tx = é\n",
]


def by_git(path: Path) -> dict[str, tuple[str, ...]]:
    done = subprocess.run(
        ["git", "config", "--file", str(path), "--list", "-z"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, capture_output=True, check=True,
    )  # fmt: skip
    found: dict[str, list[str]] = {}
    for item in done.stdout.decode().split("\0")[:-1]:
        key, newline, value = item.partition("\n")
        found.setdefault(key, []).append(value if newline else "true")
    return {key: tuple(values) for key, values in found.items()}


@pytest.mark.parametrize("text", TEXTS)
def test_reads_what_git_reads(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(text.encode())
    assert parse(text) == by_git(path)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "changes",
    [
        {"remote.new.url": ("https://new/",)},
        {"a.x": ("1", ' "two" ;#\\', "\ttab", "line\nline")},
        {"a.x": ()},
        {"core.bare": ("true",), "remote.origin.url": (), "remote.origin.fetch": ()},
        {'branch.q"uo\\te.merge': ("refs/heads/x",)},
        {"old.style.x": (), "b.y": ("3",)},
    ],
)
def test_a_change_is_read_by_git_and_nothing_else_changes(
    tmp_path: Path, text: str, changes: dict[str, tuple[str, ...]]
) -> None:
    path = tmp_path / "config"
    path.write_bytes(change(text, changes).encode())
    wanted = parse(text) | changes
    assert by_git(path) == {key: values for key, values in wanted.items() if values}
    assert [line for line in text.splitlines() if line.lstrip().startswith("#")] == [
        line for line in path.read_text().splitlines() if line.lstrip().startswith("#")
    ]


@pytest.mark.parametrize("text", ["[a\n", "[a]\n\t= 1\n", "[a]\n\tx = \"\n", "[a]\nx y\n",
                                  "[a]\nx = \\q\n", "[a]\n1x = 2\n"])  # fmt: skip
def test_refuses_what_git_refuses(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(subprocess.CalledProcessError):
        by_git(path)
    with pytest.raises(ConfigRefusedError):
        parse(text)


@pytest.mark.parametrize("url", ["https://example.com/x.git", "http://example.com:8080/x",
                                 "ssh://git@example.com/x", "git@example.com:x/y.git",
                                 "git://example.com/x", "https://user:token@example.com/x",
                                 "ssh://git@[::1]/x", "example.com:x"])  # fmt: skip
def test_addresses(url: str) -> None:
    assert is_url(url)
    assert is_allowed("remote.origin.url", (url,), ())


@pytest.mark.parametrize("url", ["", "/tmp/x", "./x", "../x", "x", "file:///x", "fd::3",
                                 "ext::sh -c x",
                                 "-x", "--upload-pack=x", "ssh://-oProxyCommand=x/", "-oX=y:z",
                                 "ssh://-x@h/y", "foo::https://x", "https://", "https:// x/y",
                                 "rsync://h/x", "x/y:z", "C:\\x", "host:-x", "https://h/x\ny",
                                 "s3::x", "ssh://user@-oProxyCommand=x/y"])  # fmt: skip
def test_no_addresses(url: str) -> None:
    assert not is_allowed("remote.origin.url", (url,), ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote.-x.url", "https://h/x"),
        ("remote.a..url", "https://h/x"),
        ("remote./tmp/x.url", "https://h/x"),
        ("remote.x y.url", "https://h/x"),
        ("branch.main.remote", "unknown"),
        ("branch.main.merge", "main"),
        ("branch.main.rebase", "interactive; x"),
        ("user.email", "a b"),
        ("user.name", "\x1b[2J"),
        ("user.name", "x" * 2000),
        ("remote.origin.fetch", "+refs/*:refs/*;x y"),
        ("core.editor", "vi"),
        ("remote.origin.pushoption", "x"),
    ],
)
def test_what_is_not_allowed(key: str, value: str) -> None:
    assert not is_allowed(key, (value,), {"origin"})


def test_a_removed_key_is_allowed_only_where_a_value_is() -> None:
    assert is_allowed("remote.origin.url", (), set())
    assert not is_allowed("core.hookspath", (), set())

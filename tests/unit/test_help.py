"""`cagewrap help` and `cagewrap man`: of one source with the docs and the program's tables."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from cagewrap import errors, topics
from cagewrap.cli import VERBS, cagewrap
from cagewrap.flags import FLAGS, SETTINGS
from cagewrap.plaintext import render, section_of, title_of
from cagewrap.topics import TOPICS, read_topic

REPO = Path(__file__).resolve().parents[2]


def call(*words):
    done = CliRunner().invoke(cagewrap, list(words), prog_name="cagewrap")
    assert done.exception is None or done.exit_code, done
    return done


# -- topics ----------------------------------------------------------------------------------------


def test_each_topic_is_a_page_of_the_documentation():
    for name, parts in TOPICS.items():
        for page, section in parts:
            text = (REPO / "docs" / page).read_text()
            assert section_of(text, section) or not section, (page, section)
            assert title_of(text)
        assert read_topic(name).startswith("#")


def test_every_page_of_the_reference_is_a_topic():
    shown = {page for parts in TOPICS.values() for page, _ in parts}
    pages = {f"reference/{path.name}" for path in (REPO / "docs/reference").iterdir()}
    assert pages - shown <= {"reference/benchmark.md", "reference/json.md"}


def test_every_way_of_installing_brings_the_pages_along():
    build = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert {f"cagewrap/{source}" for source in included} == set(included.values())
    names = [source.removeprefix("docs/") for source in included]
    assert f"for page in {' '.join(names)}; do" in (REPO / "install").read_text()
    for spec in REPO.glob("spec/*.spec"):
        assert all(f'"{name}"' in spec.read_text() for name in names), spec
    for parts in TOPICS.values():
        for page, _ in parts:
            assert any(page == name or page.startswith(name + "/") for name in names), page


def test_pages_that_did_not_come_along_are_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(topics, "docs_dir", lambda: str(tmp_path))
    with pytest.raises(errors.InternalError, match="without its documentation"):
        read_topic("config")


def test_help_lists_topics_and_shows_one():
    listed = call("help").output
    assert all(re.search(rf"^  {name} +\S", listed, re.MULTILINE) for name in TOPICS)
    assert call("help", "exit-codes").output == render(read_topic("exit-codes"), 80)
    assert call("help", "config").output.endswith("cagewrap config --help\n")
    assert call("help", "rm").output == call("rm", "--help").output
    unknown = call("help", "confg")
    assert unknown.exit_code != 0
    assert isinstance(unknown.exception, errors.UsageError)
    assert unknown.exception.hint == "cagewrap help config"


def test_help_is_plain_text_and_nothing_is_lost():
    for name in TOPICS:
        markdown = read_topic(name)
        text = render(markdown, 80)
        assert "](" not in text
        assert "**" not in re.sub(r"`[^`]*`", "", text)
        for word in re.findall(r"`([^`\s|]+)`", markdown):
            assert word in text, (name, word)
        for line in re.findall(r"^```\w*\n(.+?)\n```$", markdown, re.MULTILINE | re.DOTALL):
            assert all("    " + one in text for one in line.splitlines() if one.strip())
    width = max(len(line) for line in render(read_topic("mounts"), 60).splitlines())
    assert width < 80


def test_the_pager_is_for_a_person(tmp_path):
    """On a terminal it is $PAGER's, elsewhere nothing but text."""
    from ptyprocess import PtyProcess

    env = os.environ | {"PAGER": "cat -A", "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"}
    argv = [sys.executable, "-m", "cagewrap", "help", "sessions"]
    plain = subprocess.run(argv, env=env, capture_output=True, check=True).stdout
    assert b"$" not in plain.split(b"\n")[0]
    process = PtyProcess.spawn(argv, env=env)
    shown = b""
    while True:
        try:
            shown += process.read()
        except EOFError:
            break
    process.close()
    assert shown.startswith(b"SESSIONS$")


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# A b\n", "A B\n"),
        ("### A b\ntext\n", "A b\n\ntext\n"),
        ("a\n[b](x.md#y) **c** `d**` **e** f\n", "a b c `d**` e f\n"),
        ("- a\n- b\n  c\n\n1. d\n", "- a\n- b c\n\n1. d\n"),
        ("a\n\n```sh\nx  y\n\n# z\n```\nb\n", "a\n\n    x  y\n\n    # z\n\nb\n"),
        ("| a | b |\n|---|---|\n| `c` | d \\| e |\n", "a  b\nc  d | e\n"),
        ("| | |\n|---|---|\n| c | d |\n", "c  d\n"),
        ("| a | b |\n|---|---|\n| c | 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 |\n",
         "c\n    1 2 3 4 5 6 7 8 9 10 11 12 13\n    14 15 16 17\n"),
        ("| a | b | c |\n|---|---|---|\n| d | \N{EN DASH} | 1 2 3 4 5 6 7 8 9 10 11 12 13 |\n",
         "d\n    c: 1 2 3 4 5 6 7 8 9 10 11 12\n    13\n"),
    ],
)  # fmt: skip
def test_markdown_as_text(markdown, text):
    assert render(markdown, 34) == text


def test_a_section_ends_where_the_next_begins():
    page = "# P\n## A\na\n### AA\n```\n# no heading\n```\n## B\nb\n"
    assert section_of(page, "A") == "## A\na\n### AA\n```\n# no heading\n```\n"
    assert section_of(page, "B") == "## B\nb\n"
    assert section_of(page, "C") == ""


# -- the manual page -------------------------------------------------------------------------------


def test_the_manual_page_has_all_there_is():
    page = call("man").output
    plain = re.sub(r"\\f[BIR]", "", page).replace("\\-", "-")
    for name in VERBS:
        assert f"\n.SS cagewrap {name}" in plain, name
    for sub in ("build", "from-session"):
        assert f"\n.SS cagewrap image {sub}" in plain
    for row in FLAGS:
        head = f"{row.flag} {row.metavar}".strip()
        assert f"\n.TP\n{head}\n" in plain
    for row in SETTINGS:
        assert not row.env or f"\n.TP\n{row.env}\nas {row.flag}\n" in plain
    for error in errors.CagewrapError.__subclasses__():
        assert f"\n.TP\n{error.exit_code}\n" in plain
    assert plain.startswith(".TH CAGEWRAP 1 ")


def test_the_manual_page_has_no_request_but_its_own():
    page = call("man").output
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".nh", ".ad", ".SH", ".SS", ".PP", ".TP", ".br"}
    escapes = set(re.findall(r"\\(?:\[u\w+\]|\(..|f.|.)", page))
    assert escapes <= {"\\-", "\\e", "\\(aq", "\\(ga", "\\(ti", "\\(ha", "\\fB", "\\fI", "\\fR",
                       "\\[u2026]"}  # fmt: skip
    assert page.isascii()


def test_the_manual_page_can_be_made_the_same_again(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert '"1970-01-02"' in call("man").output

"""The reference pages say what the program says."""

import json
import re
from pathlib import Path

import click
import pytest

from cagewrap.cli import VERBS, cagewrap
from cagewrap.config import read_config

REPO = Path(__file__).resolve().parents[2]
COMMANDS = (REPO / "docs/reference/commands.md").read_text()


def verbs():
    context = click.Context(cagewrap)
    for name in VERBS:
        command = cagewrap.get_command(context, name)
        assert command is not None
        yield name, command


@pytest.mark.parametrize(("name", "command"), list(verbs()))
def test_every_verb_and_option_is_documented(name, command):
    [line] = [line for line in COMMANDS.splitlines() if line.startswith(f"| `cagewrap {name}")]
    if isinstance(command, click.Group):
        assert all(f"`{sub}`" in line or f" {sub}`" in line for sub in command.commands)
        return
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("--") and option != "--json":
                assert option in line, f"{option} of {name}"


@pytest.mark.parametrize(("name", "command"), list(verbs()))
def test_every_verb_that_answers_speaks_json(name, command):
    if name in ("completion", "help", "man"):  # a text is what they are asked for
        return
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    for one in commands:
        options = {option for parameter in one.params for option in parameter.opts}
        assert ("--json" in options) == (one.name != "shell"), one.name


def test_every_link_between_pages_leads_somewhere():
    for page in (*REPO.glob("docs/**/*.md"), *REPO.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(REPO)}: {target}"


def blocks(kind):
    """What stands in fences of one kind in the page about harnesses."""
    text = (REPO / "docs/agents-harnesses.md").read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_settings_of_harnesses_can_be_read(tmp_path):
    assert len(blocks("json")) >= 5
    for text in blocks("json"):
        json.loads(text)
    assert len(blocks("toml")) == 2
    for text in blocks("toml"):
        file = tmp_path / "cagewrap.toml"
        file.write_text(text)
        file.chmod(0o600)
        assert read_config(str(file))

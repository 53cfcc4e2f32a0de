"""The documents: links lead somewhere, and the README begins with two commands that are there."""

import os
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """As the usual renderers make it of a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


def anchors(document: Path) -> set[str]:
    return {
        anchor(line.lstrip("#"))
        for line in CODE.sub("", document.read_text()).splitlines()
        if line.startswith("#")
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in LINK.findall(CODE.sub("", document.read_text())):
        if target.startswith(("https://", "mailto:")):
            continue
        name, _, part = target.partition("#")
        path = document if not name else (document.parent / name).resolve()
        if not path.exists() or (part and part not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_readme_begins_with_two_commands() -> None:
    lines = (REPO / "README.md").read_text().splitlines()[:20]
    first = lines.index("```sh")
    commands = [line.split("#")[0].strip() for line in lines[first + 1 : lines.index("```", first)]]
    assert commands == ["./install --try", "./check"]
    for command in commands:
        assert os.access(REPO / command.split()[0], os.X_OK)

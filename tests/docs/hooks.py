"""What mkdocs does not do by itself for the web page of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Append the list of records to the page of decisions."""
    if page.file.src_uri != "decisions/index.md":
        return markdown
    directory = Path(config["docs_dir"]) / "decisions"
    records = sorted(directory.glob("0*.md"))
    return markdown + "\n" + "\n".join(f"- [{title(path)}]({path.name})" for path in records)


def title(path: Path) -> str:
    return path.read_text().partition("\n")[0].lstrip("# ")

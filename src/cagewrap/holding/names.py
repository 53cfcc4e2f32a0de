"""The table: what in a project is run or obeyed by programs of the host that nobody asks.

Build tools and tests run the project's code by design (Makefile, package.json, conftest.py and
the like): they are not here. `docs/reference/protected-paths.md` is this table for people.
"""

from __future__ import annotations

DIRECTORIES: dict[str, str] = {
    ".claude": "claude runs the hooks, commands and servers in it",
    ".vscode": "VS Code applies its settings and runs its tasks",
    ".idea": "JetBrains' editors run its configurations and watchers",
    ".zed": "Zed runs its tasks and language servers",
    ".cursor": "Cursor runs its hooks and servers",
    ".windsurf": "Windsurf runs its hooks and servers",
    ".kiro": "Kiro runs its hooks and servers",
    ".fleet": "Fleet runs its configurations",
    ".helix": "Helix runs the language servers it names",
    ".devcontainer": "editors run its initializeCommand",
    ".gemini": "gemini runs its hooks and servers",
    ".qwen": "qwen runs its hooks and servers",
    ".codex": "codex runs its hooks and servers",
    ".opencode": "opencode runs its plugins and servers",
    ".pi": "pi runs its extensions",
    ".roo": "Roo Code runs its servers",
    ".github/hooks": "Copilot runs them",
    ".husky": "git runs its hooks",
    ".githooks": "git runs its hooks, if core.hooksPath says so",
    ".lefthook": "lefthook runs its scripts as git hooks",
    ".mise": "mise runs its tasks and hooks, also at a prompt",
}
"""Directories by their path from the root of a project, each with what makes it dangerous."""

PLACEHOLDERS = (".claude", ".vscode")
"""Those that a project without them gets, empty, for as long as a cage of it runs.

claude remembers permissions in the one, and an editor that is open applies the other at once.
"""

UNCOPIED: dict[str, tuple[str, ...]] = {".claude": ("worktrees",)}
"""What is left out of the private copy of a directory: whole work trees."""

FILES: dict[str, str] = {
    ".mcp.json": "claude starts the servers it names",
    "opencode.json": "opencode starts the servers and plugins it names",
    "opencode.jsonc": "opencode starts the servers and plugins it names",
    "crush.json": "crush starts the servers it names",
    ".crush.json": "crush starts the servers it names",
    ".aider.conf.yml": "aider runs the commands it names",
    ".devcontainer.json": "editors run its initializeCommand",
    ".pre-commit-config.yaml": "pre-commit runs it at git commit",
    "lefthook.yml": "lefthook runs it at git commit",
    "lefthook.yaml": "lefthook runs it at git commit",
    "lefthook.toml": "lefthook runs it at git commit",
    "lefthook.json": "lefthook runs it at git commit",
    ".lefthook.yml": "lefthook runs it at git commit",
    ".lefthook.yaml": "lefthook runs it at git commit",
    "lefthook-local.yml": "lefthook runs it at git commit",
    ".lefthook-local.yml": "lefthook runs it at git commit",
    "mise.toml": "mise runs its hooks at a prompt",
    ".mise.toml": "mise runs its hooks at a prompt",
    "mise.local.toml": "mise runs its hooks at a prompt",
    ".mise.local.toml": "mise runs its hooks at a prompt",
    ".config/mise.toml": "mise runs its hooks at a prompt",
    ".config/mise/config.toml": "mise runs its hooks at a prompt",
    "mise/config.toml": "mise runs its hooks at a prompt",
    ".tool-versions": "it says which programs run under their usual names",
    "rust-toolchain": "cargo and rustc, also at a prompt, are the programs it names",
    "rust-toolchain.toml": "cargo and rustc, also at a prompt, are the programs it names",
    ".envrc": "direnv runs it at a prompt, where its directory is trusted",
    ".autoenv": "autoenv runs it at a prompt",
    ".autoenv.zsh": "autoenv runs it at a prompt",
    ".exrc": "vi obeys it",
    ".vimrc": "vi obeys it",
    ".nvimrc": "nvim obeys it",
    ".nvim.lua": "nvim obeys it",
    ".hg/hgrc": "hg runs its hooks, also at a prompt",
}
"""Files, by their path from the root of a project, each with what makes it dangerous."""

NESTED: dict[str, str] = {
    ".claude/settings.json": "claude runs its hooks when it is started in that directory",
    ".claude/settings.local.json": "claude runs its hooks when it is started in that directory",
    ".mcp.json": "claude starts the servers it names when it is started in that directory",
}
"""Files below any directory of a project but its root, found by a walk after a message."""

NESTED_KNOWN: dict[str, str] = {
    ".vscode/settings.json": "VS Code applies it when that directory is opened",
    ".vscode/tasks.json": "VS Code runs it when that directory is opened",
    "mise.toml": "mise runs its hooks at a prompt in that directory",
    ".mise.toml": "mise runs its hooks at a prompt in that directory",
    "rust-toolchain": "cargo and rustc, also at a prompt there, are the programs it names",
    "rust-toolchain.toml": "cargo and rustc, also at a prompt there, are the programs it names",
    ".hg/hgrc": "hg runs its hooks, also at a prompt in that directory",
}
"""The same, but only what was there before is put back: of a new one its program asks first, or
every cloned repository has one."""

ENDINGS: dict[str, str] = {
    ".code-workspace": "VS Code applies it when it is opened",
}
"""Endings of the names of files anywhere in a project, of which the same holds."""


_OF_GIT = ("HEAD", "commondir", "config", "config.worktree", "hooks")


def why(path: str) -> str:
    """What on the host runs or obeys the file or directory at a path from the project's root."""
    parts = path.split("/")
    for known in (
        FILES.get(path),
        DIRECTORIES.get(parts[0]),
        DIRECTORIES.get("/".join(parts[:2])),
    ):
        if known:
            return known
    ending = "/".join(parts[-2:])
    for table in (NESTED, NESTED_KNOWN):
        found = table.get(ending) or table.get(parts[-1])
        if found:
            return found
    if ".git" in parts or parts[-1] in _OF_GIT:
        return "git runs what it names, also at a prompt in that directory"
    for ending, reason in ENDINGS.items():
        if path.endswith(ending):
            return reason
    return "a program of the host's may run it"


def is_nested(path: str, *, known: bool) -> bool:
    """Whether the path's end is in the tables of files below any directory; known: also those
    that are only put back."""
    above, _, name = path.rpartition("/")
    ending = f"{above.rpartition('/')[2]}/{name}"
    if above and (ending in NESTED or name in NESTED):
        return True
    if not known:
        return False
    return (bool(above) and (ending in NESTED_KNOWN or name in NESTED_KNOWN)) or name.endswith(
        tuple(ENDINGS)
    )

"""What is held back of a session's git directory: shown, handed over, thrown away."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from .cages import Cage
from .test_git_work import Repository

pytestmark = pytest.mark.host_side

HOOK = ".git/hooks/pre-push"
EDITOR = ".git/config:core.editor"


@pytest.fixture
def repository(cage: Cage) -> Repository:
    found = Repository(cage)
    found.begin()
    found.inside(
        "git config core.editor evil; git config user.name Agent;"
        f"printf '#!/bin/sh\\ntrue\\n' > {HOOK}; chmod +x {HOOK}"
    )
    return found


def held(cage: Cage) -> dict[str, Any]:
    done = cage.cagewrap("review", "--json")
    assert done.code == 0, done.err
    return {one["path"]: one for one in json.loads(done.out)["held"]}


def test_configuration_and_hooks_are_shown(cage: Cage, repository: Repository) -> None:
    found = held(cage)
    assert set(found) == {EDITOR, HOOK}
    assert "+core.editor = evil" in found[EDITOR]["diff"]
    assert "+#!/bin/sh" in found[HOOK]["diff"]
    listed = json.loads(cage.cagewrap("ls", "--json").out)["sessions"][0]
    assert listed["held"] == 2


def test_what_is_accepted_is_the_hosts(cage: Cage, repository: Repository) -> None:
    done = cage.cagewrap("review", "--accept", HOOK)
    assert done.code != 0, "it was not shown yet"
    held(cage)
    done = cage.cagewrap("review", "--accept-all")
    assert done.code == 0, done.err
    assert repository.git("config", "core.editor") == "evil\n"
    hook = repository.path / HOOK
    assert hook.read_text() == "#!/bin/sh\ntrue\n"
    assert os.access(hook, os.X_OK)
    assert held(cage) == {}
    repository.inside("true")
    assert held(cage) == {}


def test_what_was_changed_since_it_was_shown_is_not_handed_over(
    cage: Cage, repository: Repository
) -> None:
    held(cage)
    repository.inside(f"echo more >> {HOOK}; git config core.editor worse")
    done = cage.cagewrap("review", "--accept", HOOK, "--accept", EDITOR)
    assert done.code != 0
    assert not (repository.path / HOOK).exists()
    assert "editor" not in (repository.path / ".git/config").read_text()


def test_what_is_dropped_is_gone_inside(cage: Cage, repository: Repository) -> None:
    done = cage.cagewrap("review", "--drop-all")
    assert done.code == 0, done.err
    assert held(cage) == {}
    assert repository.inside(f"git config core.editor || ls {HOOK} || echo none") == "none\n"
    assert not (repository.path / HOOK).exists()


def test_a_hook_that_is_a_symlink_is_not_followed(cage: Cage, repository: Repository) -> None:
    (cage.place.root / "secret").write_text("secret")
    repository.inside(f"rm {HOOK}; ln -s {cage.place.root}/secret {HOOK}")
    assert set(held(cage)) == {EDITOR}


def test_a_conflict_is_listed_until_it_is_dropped(cage: Cage, repository: Repository) -> None:
    cage.cagewrap("review", "--drop-all")
    time.sleep(0.5)
    copy = next(Path(cage.place.state_home).glob("cagewrap/cages/*/git/copy"))
    cage.stop()
    repository.git("commit", "-q", "--allow-empty", "-m", "mine")
    repository.env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(repository.path / ".git/objects")
    repository.git("--git-dir", str(copy), "commit", "-q", "--allow-empty", "-m", "agents")
    repository.inside("true")
    (path,) = held(cage)
    assert path.startswith("refs/cagewrap/")
    assert cage.cagewrap("review", "--accept", path).code != 0
    assert cage.cagewrap("review", "--drop", path).code == 0
    assert held(cage) == {}
    assert path not in repository.git("for-each-ref")
    assert path not in repository.inside("git for-each-ref")

"""What a keeper prepares while podman is at work, and what comes of it without a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from cagewrap import sessions
from cagewrap.errors import CagewrapError
from cagewrap.holding import tree
from cagewrap.holding.directory import locked
from cagewrap.holding.places import Place
from cagewrap.keeper import covers, namespaces
from cagewrap.keeper.arrival import Arrival
from cagewrap.keeper.begin import Begun
from cagewrap.keeper.container import Container
from cagewrap.keeper.coverings import Coverings
from cagewrap.keeper.covers import Identity
from cagewrap.paths import Paths
from cagewrap.sessions import Record, State

NO_CONTAINER = cast("Container", None)
NOTHING: Identity = (0, 0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(
        home=str(tmp_path),
        config_file=str(tmp_path / "cagewrap.toml"),
        state_dir=str(tmp_path / "state"),
        runtime_dir=str(tmp_path / "run/cagewrap"),
        podman_runtime_dir=str(tmp_path / "run"),
    )
    sessions.make_directories(found)
    return found


def record(project: Path, *words: str) -> Record:
    return Record(
        name="one",
        project=str(project),
        session="",
        created_at=1.0,
        image="img",
        runtime="crun",
        identity="root",
        network="none",
        config_hash="0" * 16,
        home="/home/me",
        run_args=("podman", "run", *words, "img"),
        binds=((str(project), str(project)),),
    )


class Covered:
    """The coverings of a cage that does not run."""

    def __init__(self, paths: Paths, project: Path, *words: str) -> None:
        self.place = Place(paths, str(project))
        self.root = tree.open_project(str(project))
        self.store = os.path.join(paths.state_dir, "held")
        one = record(project, *words)
        self.coverings = Coverings(one, self.place, self.store, self.root, NO_CONTAINER)

    def __enter__(self) -> Coverings:
        self._lock = locked(self.place.dir)
        self._lock.__enter__()
        return self.coverings

    def __exit__(self, *_: object) -> None:
        self.coverings.close()
        self._lock.__exit__(None, None, None)
        os.close(self.root)


def test_what_is_planned_and_seen_needs_nothing_more(paths: Paths, project: Path) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text("{}")
    with Covered(paths, project) as coverings:
        planned = coverings.plan()
        sources = {cover.target: cover.source for cover in planned}
        copy = Path(sources[f"{project}/.claude"])
        assert (copy / "settings.json").read_text() == "{}"
        coverings.planned([covers.identity(cover.source) for cover in planned])
        assert not coverings.must_renew()


@pytest.mark.parametrize("what", ["nothing", "bare", "another"])
def test_what_is_not_seen_is_covered_anew(paths: Paths, project: Path, what: str) -> None:
    """Another directory may have been there for the moment of mounting, and be gone again."""
    (project / ".claude").mkdir()
    (project / "another").mkdir()
    with Covered(paths, project) as coverings:
        planned = coverings.plan()
        seen = {
            "nothing": NOTHING,
            "bare": covers.identity(str(project / ".claude")),
            "another": covers.identity(str(project / "another")),
        }[what]
        is_claude = [cover.target.endswith("/.claude") for cover in planned]
        assert any(is_claude)
        coverings.planned(
            [
                seen if is_it else covers.identity(cover.source)
                for cover, is_it in zip(planned, is_claude, strict=True)
            ]
        )
        assert coverings.must_renew()


def test_nothing_hidden_is_copied_beforehand(paths: Paths, project: Path) -> None:
    """What is mounted in a directory is seen when the container runs."""
    (project / ".claude").mkdir()
    (project / ".claude/secret").write_text("hidden")
    hidden = f"--mount=type=bind,src=/empty,dst={project}/.claude/secret,ro"
    with Covered(paths, project, hidden) as coverings:
        assert not [cover for cover in coverings.plan() if cover.target.endswith("/.claude")]
    store = Path(paths.state_dir)
    assert not [path for path in store.rglob("secret") if path.read_text() == "hidden"]


def what_we_have() -> tuple[int, str]:
    """How many descriptors, and which children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return len(os.listdir("/proc/self/fd")), children


def test_a_waiting_child_answers_once_and_leaves_nothing() -> None:
    before = what_we_have()
    assert namespaces.Waiting(lambda question: question + b"!").ask(b"what") == b"what!"
    namespaces.Waiting(lambda _: b"").close()
    with pytest.raises(OSError, match="died"):
        namespaces.Waiting(lambda _: os._exit(1)).ask(b"")
    assert what_we_have() == before


def test_a_project_that_is_gone_is_said_when_the_container_runs(
    paths: Paths, project: Path
) -> None:
    """Not by the keeper's end, which nobody understands, and which leaves podman at work."""
    one = record(project)
    project.rmdir()
    begun = Begun(paths, one, State(), None, NO_CONTAINER, paths.runtime_dir, "")  # type: ignore[arg-type]
    arrival = Arrival(begun, print)
    arrival.prepare()
    with pytest.raises(CagewrapError, match="project"):
        arrival.enter()
    arrival.close()

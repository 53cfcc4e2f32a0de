"""Downloads that cages share: where they are kept, and where they are inside."""

from __future__ import annotations

from cagewrap.caches import cache_mounts, make_caches
from cagewrap.model import Owner
from cagewrap.paths import Paths
from cagewrap.values import CACHES

OWNER = Owner(uid=1000, gid=1000, name="me", home="/home/me")


def test_each_cache_is_a_directory_of_the_owners(tmp_path) -> None:
    paths = Paths("/home/me", "/c", "/s", "/r/cagewrap", "/r", caches_dir=str(tmp_path))
    mounts = {mount.source: mount for mount in cache_mounts(CACHES, owner=OWNER, paths=paths)}
    make_caches(CACHES, paths)
    assert {path.name for path in tmp_path.iterdir()} == set(CACHES)
    assert set(mounts) == {str(path) for path in tmp_path.iterdir()}
    assert all(not mount.readonly for mount in mounts.values())
    assert mounts[str(tmp_path / "npm")].target == "/home/me/.npm"
    assert mounts[str(tmp_path / "apt")].target == "/var/cache/apt/archives"
    assert cache_mounts((), owner=OWNER, paths=paths) == ()

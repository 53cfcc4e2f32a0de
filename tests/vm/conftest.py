"""Cages of a test's own on the emulated machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .machine import LoginUser, ServiceAccount, SlowCage, cgroup_file


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "after_reboot: of the machine's second boot")
    config.addinivalue_line("markers", "vm: needs a whole machine: ./check vm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("vm")
    # The one that asks for a reboot is the last.
    items.sort(key=lambda item: item.path.name == "test_reboot.py")


@pytest.fixture(scope="session", autouse=True)
def is_whole_machine() -> None:
    assert os.getuid() != 0
    manager = f"/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service"
    assert {"cpu", "memory", "pids"} <= set(cgroup_file(manager, "cgroup.controllers").split())


@pytest.fixture
def make_cage(tmp_path: Path) -> Iterator[Callable[..., SlowCage]]:
    made: list[SlowCage] = []

    def make(*flags: str) -> SlowCage:
        made.append(SlowCage(tmp_path / f"place-{len(made)}", *flags))
        return made[-1]

    yield make
    for cage in made:
        cage.remove()


@pytest.fixture
def cage(make_cage: Callable[..., SlowCage]) -> SlowCage:
    return make_cage()


@pytest.fixture(scope="session")
def _other() -> LoginUser:
    user = LoginUser("other", 1003)
    user.make()
    return user


@pytest.fixture
def other(_other: LoginUser) -> Iterator[LoginUser]:
    """A user who is logged out, without linger and without a cage."""
    _other.forget_cages()
    yield _other
    _other.forget_cages()


@pytest.fixture(scope="session")
def _service_account() -> ServiceAccount:
    account = ServiceAccount("daemon1", 1004)
    account.make()
    return account


@pytest.fixture
def service_account(_service_account: ServiceAccount) -> Iterator[ServiceAccount]:
    """A user of services only."""
    yield _service_account
    _service_account.forget_cages()

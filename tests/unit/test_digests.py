"""The digests are those of `hashlib`."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from cagewrap import digests


def test_the_same_as_hashlib():
    for content in (b"", b"cage", bytes(range(256)) * 999):
        assert digests.sha1(content).hexdigest() == hashlib.sha1(content).hexdigest()
        assert digests.sha256(content).hexdigest() == hashlib.sha256(content).hexdigest()
        ours, theirs = (
            kind(content, digest_size=16).hexdigest() for kind in (digests.blake2b, hashlib.blake2b)
        )
        assert ours == theirs


@pytest.mark.parametrize("modules", ["cagewrap.wrap, cagewrap.launch", "cagewrap.keeper.service"])
def test_neither_shim_nor_keeper_loads_openssl_or_dataclasses(modules):
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"_hashlib", "dataclasses", "inspect"}.isdisjoint(done.stdout.split())

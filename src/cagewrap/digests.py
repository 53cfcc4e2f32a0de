"""The digests of `hashlib`, without loading OpenSSL: that takes 2 ms and 3.5 MB of memory.

Python's own implementations are slower on large content; who hashes gigabytes takes `hashlib`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import blake2b, sha1, sha256
else:
    try:
        from _blake2 import blake2b
        from _sha1 import sha1

        try:
            from _sha2 import sha256  # Python 3.12 and later
        except ImportError:
            from _sha256 import sha256
    except ImportError:  # a Python built without them
        from hashlib import blake2b, sha1, sha256

__all__ = ["blake2b", "sha1", "sha256"]

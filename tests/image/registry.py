"""A registry of one image, on this machine's loopback: enough of the protocol to pull."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """Serves what `podman save --format oci-dir` wrote, under any name.

    delay_s: how long it waits before each answer.
    """

    def __init__(self, directory: Path, delay_s: float = 0.0) -> None:
        blobs = {path.name: path for path in directory.rglob("*") if len(path.name) == 64}
        index = json.loads((directory / "index.json").read_text())
        index["mediaType"] = _INDEX
        for one in index["manifests"]:
            one["platform"] = {"os": "linux", "architecture": "amd64"}
        document = json.dumps(index).encode()
        manifests = {one["digest"] for one in index["manifests"]}
        self.asked: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                if delay_s:
                    registry.over.wait(delay_s)
                word = self.path.rpartition("/")[2]
                blob = blobs.get(word.removeprefix("sha256:"))
                if self.path == "/v2/":
                    self.answer(b"{}", "application/json")
                elif "/manifests/" in self.path and blob is None:
                    self.answer(document, _INDEX)
                elif blob is not None:
                    kind = _MANIFEST if word in manifests else "application/octet-stream"
                    self.answer(blob.read_bytes(), kind)
                else:
                    self.send_error(404)

            do_HEAD = do_GET

            def answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def settings(self) -> str:
        """For registries.conf: this registry stands for the hub."""
        port = self.server.server_address[1]
        return (
            f'[[registry]]\nprefix = "docker.io"\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
        )

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

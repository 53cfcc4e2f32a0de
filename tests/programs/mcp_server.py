#!/usr/bin/env python3
"""An MCP server on stdin and stdout, of which each tool asks a daemon on a unix socket.

MCP_SOCKET=PATH mcp_server.py mcp
"""

import json
import os
import socket
import sys

TOOL = {"name": "list_agents", "description": "Asks.", "inputSchema": {"type": "object"}}


def ask() -> str:
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(os.environ["MCP_SOCKET"])
        daemon.sendall(b"list\n")
        return daemon.makefile().readline().strip()


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        version = params["protocolVersion"]
        about = {"name": "shrooms", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": ask()}]}
    return {}


def main() -> None:
    assert sys.argv[1:] == ["mcp"]
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = answer(request["method"], request.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


main()

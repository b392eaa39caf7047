"""`kiln mcp`: tools for agents, called by a real client where the package is installed."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from kiln.workbench import mcp
from kiln.workbench.main import main


def test_the_tools_are_listed(capsys):
    assert main(["mcp", "--list"]) == 0
    listed = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert {"verify", "sanitize", "profile", "inspect", "kb", "explain"} <= set(listed)
    for tool in mcp.TOOLS:
        assert "Args:" in (tool.__doc__ or "")


def test_without_the_package_it_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp"]) == 3
    assert "pip install" in capsys.readouterr().err


def test_the_words_that_tools_stand_for(monkeypatch):
    asked = []
    monkeypatch.setattr(mcp, "_ask", lambda *of: asked.append(of) or {})
    mcp.verify("case.py", options="--m 512")
    mcp.sanitize("p.py", "--n 4", "sub")
    mcp.profile("case.py", "sm_100a")
    mcp.inspect("p.py", "bank-conflicts")
    mcp.inspect("p.py", "resources")
    assert asked == [
        ("verify", ["case.py", "--quick", "--m", "512"], "."),
        ("run", ["--target", "cpu", "--sanitize=race,memory,sync", "p.py", "--n", "4"], "sub"),
        ("profile", ["case.py", "--arch", "sm_100a"], "."),
        ("inspect", ["--bank-conflicts", "p.py"], "."),
        ("inspect", ["--resources", "--arch", "sm_90a", "p.py"], "."),
    ]


def test_the_library_explains_a_call():
    answer = mcp.explain("gemm", ["f16[256,128]", "f16[128,64]"])
    assert answer["passed"] and answer["output"].startswith("gemm on H100")


def test_a_client_calls_a_tool(tmp_path):
    package = pytest.importorskip("mcp")
    if not hasattr(package, "Client"):
        pytest.skip("the client of mcp 2")
    program = tmp_path / "prints.py"
    program.write_text("print(6 * 7)\n")

    async def call():
        how = package.StdioServerParameters(command=sys.executable, args=["-m", "kiln", "mcp"], env=dict(os.environ))
        async with package.Client(how) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            answer = await client.call_tool("run", {"program": str(program)})
            return tools, json.loads(answer.content[0].text)

    tools, answer = asyncio.run(call())
    assert tools == {tool.__name__ for tool in mcp.TOOLS}
    assert answer["output"] == "42\n" and answer["passed"]

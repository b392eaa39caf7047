"""Displays of notebooks have the same content as HTML and as text, escape it, and need no ipywidgets."""

from __future__ import annotations

import html
import re
import sys
import types
import xml.etree.ElementTree

import numpy as np
import pytest

import kiln
from kiln import Float32, cute, pipeline
from kiln._support import notebook
from kiln.measure.comparison import Comparison
from kiln.measure.measurement import Measurement
from kiln.measure.statistics import Interval
from kiln.workbench.core import command_line


def words(shown):
    """Return the words of an object as text and as HTML, which must be well formed."""
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    xml.etree.ElementTree.fromstring(bundle["text/html"].replace("<br>", "<br/>"))
    bare = html.unescape(re.sub(r"<[^>]*>", " ", bundle["text/html"]))
    return (
        bundle["text/plain"],
        set(re.findall(r"[^\s,;:]+", bundle["text/plain"])),
        set(re.findall(r"[^\s,;:]+", bare)),
    )


@cute.kernel
def exchange(x: cute.Tensor, y: cute.Tensor, n: kiln.Constexpr):
    """Read <another> thread's element."""
    thread, _, _ = cute.arch.thread_idx()
    shared = cute.make_tensor(cute.arch.alloc_smem(Float32, 64 * 32), cute.make_layout((64, 32), stride=(32, 1)))
    shared[thread, 0] = x[thread]
    y[thread] = shared[(thread + 1) % n, 0] if thread < n else x[thread]


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, n: kiln.Constexpr):
    exchange(x, y, n).launch(grid=1, block=64)


@pytest.fixture(scope="module")
def arrays():
    return np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


def test_reports_of_the_sanitizer(arrays):
    with kiln.sanitize("race", raises=False) as report:
        launch(*arrays, 64)
    text, plain, shown = words(report)
    assert plain <= shown and text == str(report) == repr(report)
    assert "race in kernel exchange" in text and "more: kiln kb show missing-barrier" in text
    assert "thread &lt; n" in report._repr_mimebundle_()["text/html"]  # of the source line
    with kiln.sanitize(raises=False) as empty:
        pass
    assert words(empty)[0] == "the sanitizer found nothing"


def test_reports_of_bank_conflicts(arrays):
    with kiln.bank_conflicts() as report:
        launch(*arrays, 64)
    text, plain, shown = words(report)
    assert plain <= shown and "32-way" in shown and repr(report) == text
    with kiln.bank_conflicts() as empty:
        pass
    assert "no kernel accessed shared memory" in words(empty)[0]


def test_functions_and_kernels(arrays):
    text, plain, shown = words(exchange)
    assert plain <= shown and "@kernel at " in text and "<another>" in text
    assert text.startswith("exchange(x: Tensor, y: Tensor, n: Constexpr)")
    assert re.fullmatch(r"<launch\(x: Tensor, .*, @jit function at .*test_notebook.py:\d+>", repr(launch))
    compiled = cute.compile(launch, *arrays, 64)
    text, plain, shown = words(compiled)
    assert plain <= shown and "on the target cpu, compiled for n=64" in text and "Float32" in text
    assert repr(compiled).startswith("<compiled launch(x: ")


def test_a_compiled_function_shows_resources(arrays):
    compiled = cute.compile(launch, *arrays, 64)
    known = types.SimpleNamespace(registers=40, spill_stores=4, spill_loads=8, smem=8192, stack=16)
    compiled.executable = types.SimpleNamespace(resources={"exchange_0": known}, artifacts={})
    text, plain, shown = words(compiled)
    assert "exchange_0: registers 40, spills 12 B, shared memory 8192 B, local memory 16 B" in text and plain <= shown


def test_pipelines():
    kept = []

    @cute.kernel
    def piped():
        threads = pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        kept.append(pipeline.PipelineCpAsyncGroups.create(num_stages=3))
        kept.append(
            pipeline.PipelineTmaAsync.create(
                num_stages=2, tx_count=4096, producer_group=one, consumer_group=threads,
            )
        )  # fmt: skip

    @cute.jit
    def go():
        piped().launch(grid=1, block=64)

    cute.compile(go)
    texts = [words(each)[0] for each in kept]
    assert (
        texts[1]
        == repr(kept[1])
        == (
            "PipelineTmaAsync of 2 stages; full by TmaLoad, arrivals: 1 and 4096 bytes; empty by AsyncThread, arrivals: 32"
        )
    )
    assert texts[0].startswith("PipelineCpAsyncGroups of 3 stages; full by CopyGroups")
    assert all(plain - {"by", "arrivals", "full", "empty"} <= shown for _, plain, shown in map(words, kept))


def test_comparisons():
    one = Measurement(2.0, 1.9, 2.1, [2.0] * 20, "graph")
    _, plain, shown = words(Comparison({"a<b": one, "c": one}, {"c": Interval(1.0, 0.9, 1.1)}))
    assert plain <= shown and "a<b" in shown


def test_pictures_say_in_words_what_they_show():
    picture = cute.make_layout((4, 8), stride=(8, 1))._repr_svg_()
    root = xml.etree.ElementTree.fromstring(picture)
    told = {each.tag.rpartition("}")[2]: each.text for each in root}
    assert root.get("role") == "img" and told["title"] == "(4,8):(8,1)"
    assert told["desc"] == "A table of 4 rows and 8 columns; each cell has its offset."


def test_progress_in_a_notebook_updates_one_display(monkeypatch):
    updates = []

    class Handle:
        def update(self, shown):
            updates.append(shown._repr_mimebundle_())

    def display(shown, display_id):
        assert display_id
        updates.append(shown._repr_mimebundle_())
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    module.display = types.ModuleType("IPython.display")
    module.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    assert notebook.is_here()
    with command_line.progress(3, "verify <it>") as advance:
        advance("odd n+1")
        advance()
    assert "<progress" in updates[0]["text/html"] and "&lt;it&gt;" in updates[0]["text/html"]
    assert updates[-1]["text/plain"] == "verify <it>: 2 of 3 (0 s)" and 'value="2" max="3"' in updates[-1]["text/html"]
    shell.kernel = None
    assert not notebook.is_here()  # IPython in a terminal

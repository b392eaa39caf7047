"""`kiln kb`: pages are checked, claims are measured and written down, and what is known is found."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kiln.workbench.core.records import Journal, Record
from kiln.workbench.kb import claims as kb_claims
from kiln.workbench.kb import cli as kb
from kiln.workbench.kb import pages as kb_pages
from kiln.workbench.kb import search

pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[3]

CASE = """
import numpy as np

problems = [{"n": 4}, {"n": 8}]
configs = [{"by": 1}, {"by": 2}]

def kernel_fn(x, config):
    return x * config["by"]

def reference_fn(x):
    return x

def get_inputs(n):
    return [np.ones(n, np.float32)]

def numbers(config, problem):
    return {"elements": problem["n"] * config["by"]}
"""

CLAIMS = """\
- {claim: twice is more, case: scale, problem: 1, change: {from: {by: 1}, to: {by: 2}}, metric: "number:elements", expect: "== 2 * before"}
- {claim: once is right, case: scale, metric: error, expect: "== 0"}
- {claim: it is fast, case: scale, change: {from: {by: 1}, to: {by: 2}}, metric: ratio, expect: ">= 1.05", on: H200}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one case, and a function that writes a page about it."""
    (tmp_path / kb_pages.CASES).mkdir(parents=True)
    (tmp_path / kb_pages.CASES / "scale.py").write_text(CASE)
    (tmp_path / kb_pages.KINDS["optimization"]).mkdir()
    monkeypatch.chdir(tmp_path)

    def page(claims=CLAIMS, change=lambda text: text):
        text = kb_pages.new("Twice", "optimization", [], "a test").replace(
            "evidence: []", "evidence:\n" + claims.rstrip()
        )
        path = tmp_path / kb_pages.KINDS["optimization"] / "twice.md"
        path.write_text(change(text))
        return path

    return page


def test_c16_claims_are_measured_and_written_down(project, capsys):
    path = project()
    assert kb.main(["check", "--inline", "--quiet"]) == 0
    assert "2 hold, 0 do not, 1 skipped (needs H200" in capsys.readouterr().out
    rows = kb_pages.find(Path.cwd(), "twice").rows()
    assert [row[2:4] + row[5:] for row in rows.values()] == [
        ["8", "16", "holds"], ["", "0", "holds"], ["", "", kb_pages.UNMEASURED],
    ]  # fmt: skip
    assert "status: unmeasured" in path.read_text()
    # what was measured elsewhere stays as it was while its claim does
    measured = path.read_text().replace(kb_pages.UNMEASURED, "holds (1.1 to 1.2; 3 and 2 us)")
    path.write_text(measured)
    assert kb.main(["check", "--inline", "--quiet"]) == 0
    assert path.read_text() == measured.replace("status: unmeasured", "status: measured")
    path.write_text(path.read_text().replace('>= 1.05"', '>= 1.5"'))
    kb.main(["check", "--inline", "--quiet"])
    assert kb_pages.UNMEASURED in path.read_text() and "status: unmeasured" in path.read_text()


def test_c16_a_claim_that_does_not_hold_fails(project, capsys):
    path = project(CLAIMS.replace("== 2 * before", "== 3 * before"))
    assert kb.main(["check", "--inline", "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "twice.md:11: does not hold: twice is more" in out and "found 16 (before: 8)" in out
    assert "does not hold |" in path.read_text()
    kb.main(["check", "--inline", "--quiet", "--metric", "error"])  # leaves the row of the other claim
    assert "does not hold |" in path.read_text()


def test_c16_nothing_that_can_be_measured_here(project):
    project(CLAIMS.splitlines()[2].replace("H200", "no such GPU"))
    assert kb.main(["check", "--inline"]) == 3


def test_a_case_that_fails_is_a_claim_that_does_not_hold(project, capsys):
    project(CLAIMS.splitlines()[0].replace("number:elements", "number:atoms"))
    assert kb.main(["check", "--inline"]) == 1
    assert "counts no number 'atoms': its numbers() gives elements" in capsys.readouterr().out
    project(CLAIMS.splitlines()[0].replace("number:elements", "speed"))
    assert kb.main(["check", "--inline"]) == 1
    assert "there is no metric 'speed'; there are: registers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("kind: optimization", "kind: [", 5, "the head is not YAML"),
        ("kind: optimization", "kind: trick", 3, "is not one of: optimization"),
        ("kind: optimization", "kind: anti-pattern", 3, "a page of this kind is in docs/knowledge/anti-patterns"),
        ("arch: sm_80+", "architecture: sm_80+", 5, "'architecture' is not a field of pages"),
        ("source: a test", "source:", 8, "'source' is missing"),
        ("status: unmeasured", "status: true enough", 9, "is not one of: measured"),
        ("metric: error, ", "", 12, "evidence: 'metric' is missing"),
        ('"== 0"', '"about 0"', 12, "neither `has TEXT` nor an operator"),
        ("change: {from: {by: 1}, to: {by: 2}}, metric: ratio", "metric: ratio", 13, "nothing to compare with"),
        ("metric: error", "metrik: error", 12, "'metrik' is not one of"),
        ("case: scale, metric", "case: scales, metric", 11, "there is no case docs/knowledge/cases/scales.py"),
        ("## Pitfalls", "## Traps", 1, "the sections are, in this order"),
        ("# Twice", "# Thrice", 1, "heading is its title"),
        ("TODO: lines of the case, in a block of Python", "```python\nreturn 1\n```", 33, "'return 1' is not a line of docs/knowledge/cases/scale.py"),
    ],
)  # fmt: skip
def test_c16_broken_pages_are_refused_with_their_line(project, capsys, before, after, line, said):
    project(change=lambda text: text.replace(before, after, 1))
    assert kb.main(["index"]) == 2
    error = capsys.readouterr().err
    assert f"docs/knowledge/optimizations/twice.md:{line}: " in error and said in error


def test_c16_the_index_is_checked(project, capsys):
    path = project()
    assert kb.main(["index", "--check"]) == 1
    assert kb.main(["index"]) == 0
    assert kb.main(["index", "--check"]) == 0
    path.write_text(path.read_text().replace("TODO: one line", "now and then"))
    assert kb.main(["index", "--check"]) == 1
    assert "run `kiln kb index`" in capsys.readouterr().err


def test_the_index_lists_limits(project, tmp_path):
    project()
    page = tmp_path / "docs" / "knowledge" / "limits" / "gemm.md"
    page.parent.mkdir()
    page.write_text("# What bounds GEMM\n\nEnergy.\n")
    assert kb.main(["index"]) == 0
    index = (tmp_path / "docs" / "knowledge" / "README.md").read_text()
    assert "## Limits" in index
    assert "- [What bounds GEMM](limits/gemm.md)" in index


def test_new_pages_and_devlogs_come_from_the_journal(project, tmp_path, capsys):
    path = project()
    case = f"{kb_pages.CASES}/scale.py"
    journal = Journal(Path(kb_pages.CASES) / ".kiln")
    for key, by, us in (("aa1", 1, 30.0), ("bb2", 2, 20.0)):
        journal.append(
            Record("bench", key, "scale", {"n": 4}, {"by": by}, "ok", us=[us, us, us], env={"gpu": "NVIDIA H200"}, again=f"kiln bench {case}")
        )  # fmt: skip
    assert kb.main(["new", "faster-twice", "--from", "bb", "--journal", str(journal.folder)]) == 0
    made = kb_pages.find(tmp_path, "faster-twice")
    claim = made.claims[0]
    assert (claim.case, claim.metric, claim.on, claim.before, claim.after) == (
        case,
        "ratio",
        "H200",
        {"by": 1},
        {"by": 2},
    )
    assert claim.expect.holds(1.5) and not claim.expect.holds(1.4)
    assert kb.main(["new", "faster-twice"]) == 2  # it exists
    assert kb.main(["new", "Faster"]) == 2
    assert kb.main(["new", "../faster"]) == 2
    assert kb.main(["new", "two-lines", "--title", "Two\n---\nlines", "--kind", "optimization"]) == 0
    assert "\n# Two --- lines\n" in Path("docs/knowledge/optimizations/two-lines.md").read_text()
    Path("docs/knowledge/optimizations/two-lines.md").unlink()
    assert kb.main(["new", "other", "--from", "zz", "--journal", str(journal.folder)]) == 2
    assert kb.main(["new", "other", "--from", "bb", "--journal", "nowhere"]) == 2
    assert "--journal names the folder .kiln" in capsys.readouterr().err

    assert kb.main(["log", case, "-m", "begun", "--patterns", "twice"]) == 0
    journal.append(Record("bench", "bb3", "scale", {"n": 4}, {"by": 2}, "ok", us=[9.0, 10.0, 11.0]))
    assert kb.main(["log", case, "-m", "halved\nby magic"]) == 0
    log = Path("docs/kernels/scale.md").read_text()
    assert "[Twice](../knowledge/optimizations/twice.md)" in log and "by magic" in log
    assert '| {"n": 4} {"by": 2} | 10.00 | 20.0 | 0.500 |' in log
    assert kb.main(["log", case, "-m", "x", "--patterns", "thrice"]) == 2
    assert "did you mean 'twice'?" in capsys.readouterr().err
    assert kb.main(["log", case, "-m", "\n"]) == 2
    assert "--message is empty" in capsys.readouterr().err


def test_metrics_have_modes():
    for metric in kb_claims.METRICS:
        assert kb_claims.mode_of(metric) is not None, metric
    assert [kb_claims.mode_of(text) for text in ("sass", "registers:x", "speed")] == [None, None, None]


# --- our own pages ---------------------------------------------------------------------------------------------------


def test_c16_our_index_is_current():
    assert kb.main(["--folder", str(ROOT), "index", "--check"]) == 0


def test_our_pages_make_claims_that_can_be_checked():
    pages = kb_pages.pages(ROOT)
    assert len(pages) >= 25
    for page in pages:
        for claim in page.claims:
            mode = kb_claims.mode_of(claim.metric)
            assert mode is not None, (page.name, claim)
            assert (mode == "time") == (claim.on is not None), (page.name, claim)
    anywhere = [page.name for page in pages if not any(claim.on is None for claim in page.claims)]
    assert anywhere == [], "a page has at least one claim that needs no GPU"


QUICK = (
    "deviations-not-squares",
    "dynamic-layouts",
    "boxes-that-cannot-be",
    "early-return-before-barrier",
    "python-numbers-promote",
)
"""Pages whose claims are of every kind that needs no GPU, and take little to measure."""


@pytest.mark.quick(0)
def test_c16_our_claims_hold(child):
    """All with KILN_LONG_TESTS; else those of a few pages, in one process, and without the slow disassembler."""
    words = ["check", "--no-write"]
    if not os.environ.get("KILN_LONG_TESTS"):
        words += ["--inline", *QUICK, "--metric", "error,number,refused,finding"]
    done = child("-m", "kiln", "kb", "--folder", ROOT, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_c16_every_row_of_the_error_table_is_found(capsys):
    page = ROOT / "docs" / "reference" / "troubleshooting.md"
    rows = [
        (number, line.split("|")[1].strip())
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if line.startswith("| ")
    ]
    table = [(number, seen) for number, seen in rows if seen != "seen"][:23]
    assert len(table) == 23
    places = list(search.places(ROOT))
    for number, seen in table:
        found = search.search(places, seen.replace("`", "").split())
        assert (page, number) in [(place.path, place.line) for place in found[:3]], seen
    assert kb.main(["--folder", str(ROOT), "search", "sigmoid"]) == 0
    assert "docs/reference/troubleshooting.md:" in capsys.readouterr().out
    assert kb.main(["--folder", str(ROOT), "search", "xyzzy"]) == 1


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("vectorized loads", "sixteen-byte-accesses.md"),
        ("vectorised load", "sixteen-byte-accesses.md"),
        ("coalescing", "sixteen-byte-accesses.md"),
        ("race", "missing-barrier.md"),
        ("Race conditions?", "missing-barrier.md"),
        ("tcgen05", "blackwell.md"),
        ("sigmoid", "api-core.md"),
        ("bank conflicts", "swizzle-instead-of-padding.md"),
        ("how do I hide latency", "cp-async-ring.md"),
        ("matmul tile size", "larger-tiles-read-less.md"),
        ("split-K", "equal-shares.md"),
    ],
)
def test_the_right_page_comes_first(words, page, places):
    pytest.importorskip("sqlite3")
    assert search.search(places, words.split())[0].path.name == page


@pytest.fixture(scope="module")
def places():
    return list(search.places(ROOT))


def test_words_that_are_no_query_of_sqlite_are_words(places):
    for words in (['"'], ["AND"], ["*"], ["(a OR"], ["cp.async*"], ["a:b"], ["--"], ["NEAR(x"]):
        search.search(places, words)
    assert search.search(places, ["::"]) == []


def test_a_page_is_found_by_other_words_in_its_head_and_by_the_start_of_a_word(project, tmp_path):
    project(change=lambda text: text.replace("arch: sm_80+", "also: doubling, duplication\narch: sm_80+"))
    assert kb_pages.pages(tmp_path)[0].head["also"] == "doubling, duplication"
    for word in ("duplications", "dupli"):
        assert [place.title for place in search.search(search.places(tmp_path), [word])] == ["Twice"]


def test_a_place_that_a_checkout_and_an_installed_kiln_have_is_found_once(places):
    assert search.search([*places, *places], ["race"]) == search.search(places, ["race"])


def test_search_without_full_text_search_finds_parts_of_words(places, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    found = search.search(places, ["barrier", "missing"])
    assert "missing-barrier.md" in [place.path.name for place in found[:4]]


def test_reading_needs_no_yaml(tmp_path, monkeypatch, capsys):
    """What the wheel has is read without the extra `workbench`; what checks or writes pages names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert kb.main(["race"]) == 0 and kb.main(["show", "missing-barrier"]) == 0  # words without a verb are searched
    assert "## Mechanism" in capsys.readouterr().out
    assert kb.main(["examples", "--goal", "basics"]) == 0
    assert kb.main(["show", "mising-barrier"]) == 2
    assert capsys.readouterr().err == "kiln kb: there is no page 'mising-barrier'; did you mean 'missing-barrier'?\n"
    for words in (["index", "--check"], ["check"], ["new", "x"]):
        assert kb.main(["--folder", str(ROOT), *words]) == 3
        assert "pip install PyYAML" in capsys.readouterr().err


def test_a_wheel_has_the_pages_where_they_are_looked_for(tmp_path, monkeypatch, capsys):
    assert '"docs" = "kiln/workbench/kb/docs"' in (ROOT / "pyproject.toml").read_text()
    installed = tmp_path / "site-packages/kiln/workbench/kb"
    shutil.copytree(ROOT / "docs/knowledge", installed / "docs/knowledge")
    monkeypatch.setattr(kb_pages, "__file__", str(installed / "pages.py"))
    monkeypatch.chdir(tmp_path)
    assert kb.main(["search", "race"]) == 0
    assert "site-packages/kiln/workbench/kb/docs/knowledge/anti-patterns/missing-barrier.md" in capsys.readouterr().out


def test_pages_of_the_documentation_are_shown_too(capsys):
    assert kb.main(["--folder", str(ROOT), "show", "sanitizer"]) == 0
    assert "# The sanitizer" in capsys.readouterr().out


def test_kilns_own_pages_are_found_from_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert kb.main(["search", "missing", "barrier"]) == 0
    separate = capsys.readouterr().out
    assert kb.main(["search", "missing barrier"]) == 0 and capsys.readouterr().out == separate
    assert kb.main(["search", "wgmma pipeline wait group"]) == 0  # nowhere in this order
    assert f"{ROOT / 'docs'}" in capsys.readouterr().out
    assert kb.main(["examples", "--goal", "pipelining"]) == 0 and kb.main(["show", "cp-async-ring"]) == 0
    assert kb.main(["show", "cp-async"]) == 2 and "did you mean 'cp-async-ring'?" in capsys.readouterr().err
    assert kb.main(["search", "zyxwvut"]) == 1 and str(ROOT / "docs") in capsys.readouterr().err
    monkeypatch.setattr(kb_pages, "read_from", lambda folder: [])  # installed, and no project
    assert kb.main(["search", "barrier"]) == kb.main(["examples"]) == 3
    assert "no docs/knowledge in this folder" in capsys.readouterr().err


def test_examples_are_listed_by_goal(capsys):
    index = search.examples(ROOT)
    paths = [example["path"] for example in index["examples"]]
    assert len(paths) == len(set(paths)) > 100
    own = [path for path in paths if path.startswith(("examples/", "docs/"))]
    assert [path for path in own if not (ROOT / path).is_file()] == []
    ours = [file.relative_to(ROOT).as_posix() for file in (ROOT / kb_pages.CASES).glob("*.py") if file.stem != "arrays"]
    assert set(ours) <= set(own)
    for goal, path in index["paths"].items():
        assert path["read"] and set(path["read"]) <= set(paths), goal
        assert any(path in own for path in path["read"]) or goal in (
            "attention",
            "mla",
            "dependent-launch",
            "blackwell",
        )
    assert all(example["runs"].startswith(("yes", "no: ", "not tried")) for example in index["examples"])
    assert kb.main(["--folder", str(ROOT), "examples", "--goal", "pipelining"]) == 0
    out = capsys.readouterr().out
    assert out.index("mma_gemm.py") < out.index("step_3_pipeline.py") and "runs on Kiln: no: tensor memory" in out
    assert kb.main(["--folder", str(ROOT), "examples", "--goal", "pipelines"]) == 2
    assert "did you mean 'pipelining'?" in capsys.readouterr().err


def test_copies_of_our_knowledge_are_found(tmp_path):
    """`kb` works in any project: from a folder below the one that has the pages, too."""
    shutil.copytree(ROOT / "docs" / "knowledge" / "optimizations", tmp_path / "docs" / "knowledge" / "optimizations")
    (tmp_path / "src").mkdir()
    assert kb_pages.root(tmp_path / "src") == tmp_path

"""PyTorch's internals are proved before native code uses them; where a proof fails calls are right without them."""

from __future__ import annotations

import json

import pytest

from kiln.interop.arguments import torch_layout
from kiln.interop.arguments.torch_layout import ProbeError, TensorLayout, examples, find_layout, prove_layout

torch = pytest.importorskip("torch")
dispatch = pytest.importorskip("kiln.interop.torch.dispatch")
probe = pytest.importorskip("kiln.interop.torch.probe")

needs_native = pytest.mark.skipif(dispatch.dispatcher() is None, reason="Python takes the calls of operators here")

PROGRAM = """
import sys
import torch
from kiln.interop.arguments import torch_layout
from kiln.interop.torch import dispatch, reader

{wrong}

import kiln.torch
from kiln import cute
from kiln.base_dsl import packages

@cute.kernel
def add_one(x: cute.Tensor, y: cute.Tensor):
    i, _, _ = cute.arch.thread_idx()
    y[i] = x[i] + 1

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    add_one(x, y).launch(grid=1, block=4)

@cute.jit
def update(x: cute.Tensor):
    add_one(x, x).launch(grid=1, block=4)

op = kiln.torch.op("kiln_tests::probe_add_one", launch, outputs={{"y": "x"}})
written = kiln.torch.op("kiln_tests::probe_update", update, mutates=("x",))
negative = torch.complex(torch.zeros(4), torch.arange(4.0)).conj().imag
for _ in range(4):
    for x in (torch.arange(4.0), torch.arange(8.0)[::2]):
        y = torch.zeros(4)
        launch(x, y)
        assert y.tolist() == op(x).tolist() == [value + 1 for value in x.tolist()], (x, y)
        before = x.clone()
        version = x._version
        written(x)
        assert torch.equal(x, before + 1) and x._version == version + 1
    assert op(negative).tolist() == [1.0, 0.0, -1.0, -2.0]
found = dispatch.dispatcher()
print(found.is_direct is not None, found.can_write, sorted(packages.lacking))
"""
LAYOUT = """
real = torch_layout.find_layout
torch_layout.find_layout = lambda tensors: real(tensors)._replace({field})
"""
DIRECT, RECORDS, VERSIONS = "torch direct calls", "torch records", "torch versions"


@pytest.mark.quick(1)
@needs_native
@pytest.mark.parametrize(
    ("wrong", "expected", "logged"),
    [
        ("", (True, True, []), ""),
        (LAYOUT.format(field="keys=real(tensors).keys + 8"), (False, True, [DIRECT, RECORDS]), "offset"),
        (LAYOUT.format(field="implementation=8"), (False, True, [DIRECT, RECORDS]), "does not point to its implementation"),
        (LAYOUT.format(field="refused=0"), (False, True, [DIRECT, RECORDS]), "not what lies in its memory"),
        ("dispatch.DIRECT['has_modes'] = dispatch.DIRECT['grad_enabled']", (False, True, [DIRECT]), "has_modes returns True"),
        ("dispatch.DIRECT['has_modes'] = 'no_such_symbol'", (False, True, [DIRECT]), "no no_such_symbol"),
        ("reader.WRITING['in_inference'] = reader.WRITING['grad_enabled']", (True, False, [VERSIONS]), "in_inference"),
    ],
    ids=["right", "keys", "implementation", "refused", "function", "symbol", "writing"],
)  # fmt: skip
def test_wrong_internals_are_not_used(child, tmp_path, wrong, expected, logged):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(wrong=wrong))
    done = child(program, KILN_TARGET="cpu", KILN_CPU_OPT="0")
    assert done.stdout == " ".join(map(str, expected)) + "\n", done.stderr
    assert (logged in done.stderr) if logged else not done.stderr


def test_a_layout_is_proved_by_every_property():
    tensors = examples()
    layout = find_layout(tensors)
    prove_layout(layout, tensors)
    for name in ("is_conj", "is_neg", "_is_zerotensor", "is_inference"):
        assert any(getattr(tensor, name)() for tensor in tensors) and not all(getattr(t, name)() for t in tensors)
    assert any(tensor.requires_grad for tensor in tensors) and any(tensor.is_sparse for tensor in tensors)
    assert any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
    for wrong in ({"keys": layout.keys + 8}, {"keys": 0}, {"implementation": 8}, {"refused": layout.refused << 1}):
        with pytest.raises(ProbeError):
            prove_layout(layout._replace(**wrong), tensors)


def test_a_layout_that_is_not_unique_is_refused(monkeypatch):
    monkeypatch.setattr(torch_layout, "_KEYS_WORDS", 1)
    with pytest.raises(ProbeError, match="dispatch keys of tensors are at 0 of the offsets"):
        find_layout(examples())
    assert isinstance(torch_layout.tensor_layout.__wrapped__(), (TensorLayout, type(None)))


@needs_native
def test_what_is_missing_is_printed_for_the_doctor(capsys):
    assert probe.main() == 0
    assert json.loads(capsys.readouterr().out)["torch"] == torch.__version__

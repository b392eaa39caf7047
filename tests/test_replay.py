"""The programs that compare revisions: names do not count, recorded times are read, renamed configs are found."""

from __future__ import annotations

import config_names
import library_variants
import normalise
import pytest
from choices import Chosen, chosen, gemm_shapes, print_beside_cublas, recorded


def test_symbols_of_ir_are_numbered():
    text = """module {
  func.func @main(%arg0: i32 loc("file.py":3:1)) {
    "cuda.launch_ex"(%0) {kernel = @Old_kernel} : (i32) -> ()
    call @external(%0) : (i32) -> ()
  }
  func.func @Old_kernel(%arg0: i32) attributes {cute.kernel} {
  }
}
#loc = loc("file.py":1:1)
"""
    assert normalise.ir(text) == normalise.ir(text.replace("Old_kernel", "New_kernel").replace("file.py", "other.py"))
    assert normalise.ir(text) != normalise.ir(text.replace("external", "another"))
    assert normalise.ir(text) != normalise.ir(text.replace("i32", "i64"))


def test_symbols_of_ptx_are_numbered():
    text = """.version 8.8
.target sm_90a
.extern .shared .align 1024 .b8 dynamic_smem[];
.visible .entry Old_kernel(
	.param .align 8 .b8 Old_kernel_param_0[48]
)
{
	.loc	1 7 3
	ld.param.b32 	%r202, [Old_kernel_param_0+16]; // comment
	mov.b32 	%r203, dynamic_smem;
$L__BB0_1:
	ret;
}
	.section	.debug_str
"""
    found = normalise.ptx(text)
    assert found == normalise.ptx(text.replace("Old_kernel", "New_kernel").replace("1 7 3", "2 8 4"))
    assert "[s1_param_0+16];" in found
    assert "$L__BB0_1:" in found
    assert "debug" not in found
    assert found != normalise.ptx(text.replace("%r203", "%r204"))


def test_every_recorded_gemm_is_known():
    found = recorded.gemms()
    assert {*found} == {shape.name for shape in [*gemm_shapes.layers(), *gemm_shapes.others()]}
    assert all(measured.best == min(measured.times.values()) for measured in found.values())


def test_choices_are_compared_with_cublas(capsys):
    names = [next(x.name for x in gemm_shapes.layers() if x.held_out is held_out) for held_out in (False, True)]
    print_beside_cublas(dict(zip(names, (1.25, 0.9))))
    assert capsys.readouterr().out.splitlines() == [
        f"    layers in the fit: 1.250 of cuBLAS, 0 of 1 below 0.97, least 1.25 of {names[0]}",
        f"    layers held out: 0.900 of cuBLAS, 1 of 1 below 0.97, least 0.90 of {names[1]}",
    ]


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["gemm", "attention", "attention decode", "mla", "attention backward"])
def test_recorded_configs_have_their_fields(family):
    for measured in recorded.everything()[family].values():
        for config in measured.times:
            assert len(config.values) == len(recorded.fields_of(family, config.kind))


def test_a_renamed_config_is_the_recorded_one():
    values = ([128, 256, 64], [2, 1], 4, 8, False, 1, False, 1, 4, False)
    old = ("block_mnk", "cluster_mn", "stages", "group", "pingpong", "splits", "swapped", "sums", "buffers", "turned")
    new = recorded.FIELDS["Sm90GemmConfig"]
    one = chosen({"class": "HopperTiling", "implementation": "A", "fields": dict(zip(old, values, strict=True))})
    other = chosen({"class": "Sm90GemmConfig", "implementation": "B", "fields": dict(zip(new, values, strict=True))})
    assert isinstance(one, Chosen)
    assert isinstance(other, Chosen)
    assert (one.kind, one.fields) == (other.kind, other.fields)
    assert any(one.key("gemm") in measured.times for measured in recorded.gemms().values())


def test_a_config_that_lost_a_field_is_found_by_names():
    fields = {"tile_shape_mnk": (128, 256, 64), "split_k": 2}
    found = config_names.recorded_name("Sm90GemmConfig", fields, recorded.FIELDS)
    assert found == ("Sm90GemmConfig", {"tile_shape_mnk": (128, 256, 64), "split_k": 2})


def test_every_config_of_the_library_is_known():
    from kiln import kernels

    configs = {name for name in dir(kernels) if name.endswith("Config")}
    assert configs <= {*config_names.RENAMED.values()}


def test_targets_have_cases_of_every_family():
    for target in ("sm_80", "sm_90a", "sm_100a"):
        assert {name.partition("/")[0] for name in library_variants.variants(target)} == {*library_variants.FAMILIES}

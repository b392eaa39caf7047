"""Features are on the architectures whose ptxas targets take their PTX, and errors tell one Blackwell chip from another."""

from __future__ import annotations

import pytest
from ptx_forms import NEWEST, TARGETS, forms, refused

from kiln.hardware import features, toolchain
from kiln.hardware.architectures import Arch
from kiln.hardware.features import Feature

FORMS = forms()
FEATURES = {name: value for name, value in vars(features).items() if isinstance(value, Feature)}
UNTRIED = {
    "TFLOAT32_TO_EVEN", "BFLOAT16_ATOMICS", "VECTOR_ATOMICS", "STMATRIX", "TCGEN05_K96", "PREFERRED_CLUSTER",
}  # fmt: skip
"""Features of which the table has no PTX: older than it, a bit of a descriptor, or an attribute of launches."""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.text.split(" [")[0].split(" {")[0])
def test_a_feature_is_on_the_targets_that_take_its_ptx(form):
    if form.feature == "-":
        assert form.targets == "-"
        return
    feature = FEATURES[form.feature]
    assert [name for name in TARGETS if feature.on(Arch[f"sm_{name}"])] == form.targets.split()


def test_every_feature_has_ptx_in_the_table():
    assert {form.feature for form in FORMS} - {"-"} == FEATURES.keys() - UNTRIED


@pytest.mark.parametrize("name", sorted(FEATURES.keys() - UNTRIED))
def test_a_feature_has_the_ptx_version_of_its_forms(name):
    feature = FEATURES[name]
    known = min((arch.generation.ptx for arch in Arch if feature.on(arch) and arch.number >= 100), default=0)
    first = max(round(10 * float(form.ptx)) for form in FORMS if form.feature == name)
    assert max(feature.ptx, known, 86) == first


@pytest.mark.quick(4)
@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", TARGETS)
def test_ptxas_takes_and_refuses_what_the_table_says(target):
    tool = toolchain.find("ptxas")
    assert tool is not None
    release = tuple(int(part) for part in (tool.version() or "0").split(".")[:2])
    if release < (13, 4):
        pytest.skip(f"the table is of PTX {NEWEST}, which ptxas of CUDA {tool.version()} does not know")
    expected = [form.text for form in FORMS if target not in form.targets.split()]
    assert sorted(form.text for form in refused(target, FORMS)) == sorted(expected)


def test_named_targets_are_architectures():
    for name, feature in FEATURES.items():
        assert set(feature.targets) <= {arch.name for arch in Arch}, name
        assert list(feature.targets) == sorted(feature.targets, key=lambda one: Arch[one].value), name
        assert bool(feature.targets) != bool(feature.since), name


def test_errors_tell_chips_of_blackwell_apart():
    assert features.TCGEN05.refusal(Arch.sm_100a) == features.TCGEN05.refusal(Arch.sm_110f) == ""
    assert features.TCGEN05.refusal(Arch.sm_120a, "tcgen05.alloc") == (
        "tcgen05.alloc needs sm_100a, sm_100f, sm_103a, sm_103f, sm_107a, sm_107f, sm_110a or sm_110f, and this is "
        "compiled for sm_120a: sm_120 has no tcgen05 and no tensor memory, but mma.sync with block scales"
    )
    assert features.TCGEN05.refusal(Arch.sm_100).endswith(
        "this is compiled for sm_100: the same GPU has it in code for sm_100a or sm_100f"
    )
    assert features.TCGEN05_I8.refusal(Arch.sm_103a) == (
        "tcgen05.mma of kind::i8 needs sm_100a or sm_110a, and this is compiled for sm_103a"
        ": sm_103 has tcgen05.mma, and mma.sync without block scales"
    )
    assert features.TCGEN05_I8.refusal(Arch.sm_100f).endswith("the same GPU has it in code for sm_100a")
    assert features.WARP_MMA_BLOCK_SCALE.refusal(Arch.sm_100a) == (
        "mma.sync with block scales needs sm_120a, sm_120f, sm_121a or sm_121f, and this is compiled for sm_100a: "
        "sm_100 has tcgen05.mma, and mma.sync without block scales"
    )
    assert features.WARPGROUP_MMA.refusal(Arch.sm_120a).endswith("but mma.sync with block scales")
    assert features.TCGEN05.refusal(Arch.sm_90a).endswith("sm_90 has wgmma and mma.sync")
    assert features.CLUSTERS.refusal(Arch.sm_80) == (
        "a cluster of CTAs needs sm_90 or newer, and this is compiled for sm_80"
    )

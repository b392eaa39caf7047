"""Architectures: order, families, limits, features, what runs where."""

from __future__ import annotations

import pytest

from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.hardware import features
from kiln.hardware.architectures import DEFAULT, GENERATIONS, Arch, generation_of, of_capability, refusal
from kiln.hardware.devices import device_of
from kiln.hardware.features import Feature
from kiln.hardware.options import GPUArch


def test_order_and_families():
    assert Arch.sm_80 < Arch.sm_89 < Arch.sm_90 < Arch.sm_90a < Arch.sm_100 < Arch.sm_100a < Arch.sm_100f < Arch.sm_101
    assert Arch.sm_100 <= Arch.from_string("SM_100a") <= Arch.sm_100f
    assert Arch.HopperArchs() == (Arch.sm_90, Arch.sm_90a)
    assert Arch.sm_120 in Arch.BlackwellArchs()
    assert Arch.sm_89 in Arch.AdaArchs()
    assert Arch.sm_89 not in Arch.AmpereArchs()
    assert Arch.filter(lambda arch: arch >= Arch.sm_121) == [Arch.sm_121, Arch.sm_121a, Arch.sm_121f]
    assert (Arch.sm_90a.to_string(), Arch.sm_90a.number, Arch.sm_90a.capability) == ("sm_90a", 90, (9, 0))
    assert [*Arch] == sorted(Arch)
    with pytest.raises(ValueError, match="'sm_42' is not an architecture"):
        Arch.from_string("sm_42")


def test_thor_has_two_names():
    """CUDA 13 calls sm_101 sm_110; programs compare with either."""
    assert (Arch.sm_101, Arch.sm_101a, Arch.sm_101f) == (Arch.sm_110, Arch.sm_110a, Arch.sm_110f)
    assert Arch.from_string("sm_101a").name == "sm_110a" and GPUArch("sm_101a").value == "sm_101a"
    assert generation_of("sm_101a") == generation_of("sm_110") and device_of("sm_101a").name == "Jetson Thor"
    assert all(arch.number != 101 for arch in Arch)


def test_who_has_tensor_memory():
    for arch in Arch:
        assert (arch.generation.tmem_columns > 0) == (100 <= arch.number <= 110), arch
        assert features.TCGEN05.on(arch) == (arch.generation.tmem_columns > 0 and arch.suffix != ""), arch
    assert Arch.sm_100.generation.tmem == 256 << 10


@pytest.mark.parametrize(
    ("gpu", "code", "runs"),
    [
        ("sm_90", "sm_90a", True),
        ("sm_103", "sm_100a", False),
        ("sm_103", "sm_100f", True),
        ("sm_86", "sm_80", True),
        ("sm_89", "sm_80", True),
        ("sm_80", "sm_89", False),
        ("sm_100", "sm_90", False),
        ("sm_100", "sm_90a", False),
    ],
)
def test_what_runs_where(gpu, code, runs):
    assert Arch[gpu].can_run_binary_built_for(Arch[code]) == runs
    assert Arch[code].runs_on(Arch[gpu].capability) == runs


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 1), "sm_121a"),
        ((8, 8), "sm_87"), ((12, 9), "sm_121"),  # newer than any that is known: what its code can run on
    ],
)  # fmt: skip
def test_what_a_gpu_is_compiled_for(capability, name):
    assert of_capability(*capability) is Arch[name]


def test_a_gpu_for_which_there_is_no_code():
    with pytest.raises(DSLRuntimeError, match=r"compute capability 7\.5"):
        of_capability(7, 5)


def test_every_architecture_has_limits_and_a_device():
    for arch in Arch:
        row, device = arch.generation, device_of(arch.name)
        assert (row.major, row.minor) == arch.capability == device.capability
        assert 0 < row.smem_optin <= row.smem_per_block == device.smem < max(row.smem, row.oversized_smem)
        assert row.threads % row.warp == 0
        assert device.sm_count > 0
    assert Arch[DEFAULT].generation in GENERATIONS


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("sm_35", "the oldest is sm_80; there are sm_80, "),
        ("sm90", "did you mean sm_90?"),
        ("sm_90b", "did you mean sm_90a?"),
        ("sm_88", "the nearest before it is sm_87; there are "),
        ("sm_999", "the nearest before it is sm_121; there are "),
        ("hopper", "there are sm_80, "),
    ],
)
def test_what_was_meant(wrong, hint):
    with pytest.raises(DSLRuntimeError, match=f"unknown GPU architecture '{wrong}'") as refused:
        GPUArch(wrong)
    assert str(refused.value.hint).startswith(hint)


def test_names_of_generations():
    assert generation_of("sm_90a") == generation_of("compute_90") == generation_of(" SM90 ") == Arch.sm_90.generation
    later = generation_of("sm_105")  # not known: as the next older one, but itself
    assert (later.number, later.smem) == (105, Arch.sm_103.generation.smem)
    for wrong in ("hopper", "sm_", "90b"):
        with pytest.raises(ValueError, match="expected a name such as 'sm_90'"):
            generation_of(wrong)
    with pytest.raises(ValueError, match="older than sm_80"):
        generation_of("sm_75")


def test_features():
    having = {
        features.CLUSTERS: ("sm_90", "sm_120"),
        features.STMATRIX: ("sm_90", "sm_90a"),
        features.SET_MAX_REGISTERS: ("sm_90a", "sm_100f"),
        features.FLOAT_REDUX: ("sm_100a", "sm_103f"),
    }
    lacking = {
        features.CLUSTERS: ("sm_80", "sm_89"),
        features.STMATRIX: ("sm_80", "sm_89"),
        features.SET_MAX_REGISTERS: ("sm_90", "sm_89"),
        features.FLOAT_REDUX: ("sm_100", "sm_90a", "sm_110a", "sm_120a"),
    }
    for feature, names in having.items():
        assert all(feature.on(Arch[name]) for name in names), feature
    for feature, names in lacking.items():
        assert not any(feature.on(Arch[name]) for name in names), feature
    assert Feature("x", 90).needs == "sm_90 or newer"
    assert Feature("x", 100, suffixes="af", before=110).needs == "sm_100a or an architecture before sm_110"


def test_features_tell_one_architecture_from_its_family():
    alone, family, both = (Feature("x", 100, suffixes=suffixes) for suffixes in ("a", "f", "af"))
    assert [alone.on(Arch[name]) for name in ("sm_100", "sm_100a", "sm_100f")] == [False, True, False]
    assert [family.on(Arch[name]) for name in ("sm_100", "sm_100a", "sm_100f")] == [False, False, True]
    assert [both.on(Arch[name]) for name in ("sm_100", "sm_100a", "sm_100f")] == [False, True, True]
    assert family.needs == "sm_100f or newer"
    assert not features.WARPGROUP_MMA.on(Arch.sm_90) and features.WARPGROUP_MMA.on(Arch.sm_90a)
    assert features.CTA_PAIRS.on(Arch.sm_100a) and not features.CTA_PAIRS.on(Arch.sm_90a)


def test_what_a_kernel_asks_for_is_compared_with_the_gpu():
    """SM100 is not SM120: the name Blackwell spans both."""
    takes = {
        "sm_80+": "80 86 90 100 103 120",
        "sm_90a": "90",
        "sm_100a, sm_103a": "100 103",
        "sm_100f": "100 103",
        "": "80 120",
    }
    for asked, numbers in takes.items():
        there = [number for number in (80, 86, 90, 100, 103, 120) if not refusal(asked, divmod(number, 10))]
        assert set(map(int, numbers.split())) <= set(there) and (not asked or len(there) == len(numbers.split()))
    assert refusal("sm_100a, sm_103a", (12, 0)) == "needs sm_100a or sm_103a, and this GPU is sm_120"
    with pytest.raises(ValueError, match=r"'sm_blackwell\+' is no architecture"):
        refusal("sm_blackwell+", (12, 0))

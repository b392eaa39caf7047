"""Where registers of asynchronous products are held, and that accesses to them are accesses to single registers."""

from __future__ import annotations

import re

import pytest
from ir_testing import after, check

from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.targets.nvidia.passes.wgmma_registers import order_registers

HEAD = """
%true = arith.constant true
%false = arith.constant false
%zero = arith.constant 0 : i32
%d = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
%e = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
"""
LONG = '%l = "cute.alloc_rmem"() {count = 8 : i64} : () -> R<f32>\n%four = arith.constant 4 : i32'
FENCE, COMMIT = '"cute_nvgpu.wgmma_fence"() : () -> ()', '"cute_nvgpu.wgmma_commit"() : () -> ()'
WRITE = '"cute.store"(%x, %d, %zero) : (f32, R<f32>, i32) -> ()'


def wait(count: int) -> str:
    return f'"cute_nvgpu.wgmma_wait"() {{count = {count} : i32}} : () -> ()'


def product(d: str = "%d", a: str = "%w", a_type: str = "i64", element: str = "f32", adds: str = "%true") -> str:
    given = 'n = 8 : i32, k = 16 : i32, a_type = "f16", b_type = "f16", a_major = "k", b_major = "k"'
    return f'"cute_nvgpu.wgmma"({d}, {a}, %w, {adds}) {{{given}}} : (R<{element}>, {a_type}, i64, i1) -> ()'


def ordered(*lines: str, kernels: tuple[str, ...] = ()) -> str:
    body = "\n".join(lines)
    return after(
        f"func.func @f(%x: f32, %v: vector<4xf32>, %n: index, %w: i64, %c: i1) {{ {HEAD} {body}\n return }}",
        lambda module: order_registers(module, kernels),
    )


def held(text: str) -> list[str]:
    """What happens in order, `d` and `e` where these are held."""
    arrays = [line.split("=")[0].strip() for line in text.splitlines() if "alloc_rmem" in line]
    names = dict(zip(arrays, "deghij", strict=False))
    found = []
    for line in map(str.strip, text.splitlines()):
        for word in (
            "wgmma_fence",
            "wgmma_commit",
            "wgmma_wait",
            "scf.for",
            "scf.while",
            "scf.if",
            "else",
            "cute.store",
        ):
            if word in line:
                found.append(word.removeprefix("wgmma_").removeprefix("scf.").removeprefix("cute."))
        if '"cute_nvgpu.wgmma"' in line:
            found.append("wgmma")
        if "hold_registers" in line:
            found.append(names[line.split("(")[1].split(")")[0]])
    return found


def test_sums_are_held_after_the_wait_that_completes_them():
    assert held(ordered(FENCE, product(), COMMIT, wait(0))) == ["fence", "wgmma", "commit", "wait", "d"]


def test_sums_that_stay_in_flight_are_not_held():
    text = ordered(FENCE, product(), COMMIT, product("%e"), COMMIT, wait(1), wait(0), wait(0))
    assert held(text) == ["fence", "wgmma", "commit", "wgmma", "commit", "wait", "d", "wait", "e", "wait"]


def test_what_was_written_is_held_before_the_fence_once():
    text = ordered(WRITE, FENCE, product(), COMMIT, wait(0), FENCE, product(), COMMIT, wait(0), WRITE, FENCE, product())
    rest = ["wgmma", "commit", "wait", "d"]
    assert held(text) == ["store", "d", "fence", *rest, "fence", *rest, "store", "d", "fence", "wgmma"]


def test_registers_of_a_are_held_before_the_fence():
    halves = '%h = "cute.alloc_rmem"() {count = 8 : i64} : () -> R<f16>'
    write = '%y = arith.truncf %x : f32 to f16\n "cute.store"(%y, %h, %zero) : (f16, R<f16>, i32) -> ()'
    text = ordered(halves, write, FENCE, product(a="%h", a_type="R<f16>"), COMMIT, wait(0))
    assert held(text) == ["store", "g", "fence", "wgmma", "commit", "wait", "d"]


def test_what_products_begin_anew_is_not_held():
    """Neither is what only products behind a later fence read: it is held before that one."""
    anew, ends = product(adds="%false"), [COMMIT, wait(0)]
    assert held(ordered(WRITE, FENCE, anew, product(), *ends)) == [
        "store",
        "fence",
        *["wgmma"] * 2,
        "commit",
        "wait",
        "d",
    ]
    later = ordered(WRITE, FENCE, product("%e"), *ends, FENCE, product(), COMMIT)
    assert held(later) == ["store", "fence", "wgmma", "commit", "wait", "e", "d", "fence", "wgmma", "commit"]
    in_flight = ordered(WRITE, FENCE, anew, COMMIT, loop(FENCE, product(), COMMIT), wait(0))
    assert held(in_flight) == ["store", "fence", "wgmma", "commit", "for", "fence", "wgmma", "commit", "wait", "d"]
    turns = ordered(WRITE, loop(FENCE, anew, *ends, WRITE))
    assert held(turns) == ["store", "for", "fence", "wgmma", "commit", "wait", "d", "store"]


def test_what_some_product_adds_to_is_held():
    """In a part that was not begun anew, on one of two ways, in the next turn of a loop."""
    moved = '%m = "cute.ptr_add"(%l, %four) : (R<f32>, i32) -> R<f32>'
    write = WRITE.replace("%d", "%l")
    assert held(ordered(LONG, moved, write, FENCE, product("%l", adds="%false"), product("%m"))).count("g") == 1
    parts = ordered(LONG, moved, write, FENCE, product("%l", adds="%false"), COMMIT, FENCE, product("%m"), COMMIT)
    assert held(parts) == ["store", "g", "fence", "wgmma", "commit", "fence", "wgmma", "commit"]
    assert held(ordered(WRITE, FENCE, "scf.if %c {", product(adds="%false"), "}", product()))[:3] == [
        "store",
        "d",
        "fence",
    ]
    assert held(ordered(loop(product(), COMMIT, wait(0), WRITE, FENCE)))[-3:] == ["store", "d", "fence"]
    assert held(ordered(WRITE, FENCE, loop(product("%e"), product(adds="%c"))))[:3] == ["store", "d", "fence"]


def loop(*lines: str) -> str:
    head = "%i0 = arith.constant 0 : index\n %i1 = arith.constant 1 : index\n scf.for %i = %i0 to %n step %i1 {"
    return "\n".join([head, *lines, "}"])


def test_a_main_loop_holds_nothing():
    """What was written before is held before the loop; in the loop sums stay in flight; they are held at the end."""
    text = ordered(WRITE, loop(FENCE, product(), product(), COMMIT, wait(1)), wait(0))
    assert held(text) == ["store", "d", "for", "fence", "wgmma", "wgmma", "commit", "wait", "wait", "d"]


def test_what_a_loop_writes_is_held_in_it():
    text = ordered(loop(FENCE, product(), COMMIT, wait(0), WRITE))
    assert held(text) == ["for", "d", "fence", "wgmma", "commit", "wait", "d", "store"]


def test_groups_of_the_last_turn_are_in_flight_in_the_next():
    text = ordered(loop(FENCE, product(), COMMIT, product("%e"), COMMIT, wait(2)))
    # after two turns d and e have two groups each in flight; all stay
    assert held(text) == ["for", "fence", "wgmma", "commit", "wgmma", "commit", "wait"]
    text = ordered(loop(wait(0), FENCE, product(), COMMIT))
    assert held(text) == ["for", "wait", "d", "fence", "wgmma", "commit"]


def test_a_while_loop_with_tiles():
    turn = [WRITE, loop(FENCE, product(), COMMIT, wait(1)), wait(0)]
    text = ordered("scf.while : () -> () { scf.condition(%c) } do {", *turn, "scf.yield }")
    assert held(text) == ["while", "store", "d", "for", "fence", "wgmma", "commit", "wait", "wait", "d"]


def test_branches_may_have_issued_products():
    """On one way d is in flight by two groups, on the other by none: a wait that leaves one may complete it."""
    text = ordered(
        FENCE,
        "scf.if %c {",
        product(),
        COMMIT,
        "} else {",
        product("%e"),
        COMMIT,
        "}",
        product("%e"),
        COMMIT,
        wait(1),
        wait(0),
    )
    assert held(text) == [
        "fence", "if", "wgmma", "commit", "else", "wgmma", "commit", "wgmma", "commit", "wait", "d", "wait", "e"
    ]  # fmt: skip
    text = ordered(FENCE, product(), "scf.if %c {", COMMIT, COMMIT, "} else {", COMMIT, "}", wait(1), wait(0))
    assert held(text)[-4:] == ["wait", "d", "wait", "d"]


def test_registers_made_in_a_loop_can_be_held_outside():
    made = '%f = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>'
    text = ordered(loop(made, FENCE, product("%f"), COMMIT), wait(0))
    check(
        text,
        'func.func\n %f = "cute.alloc_rmem"\nscf.for\n"cute_nvgpu.wgmma"(%f\nwgmma_wait\n"cute_nvgpu.hold_registers"(%f)',
    )


def test_pointers_that_control_flow_carries_are_followed():
    chosen = "%p = scf.if %c -> R<f32> { scf.yield %d : R<f32> } else { scf.yield %e : R<f32> }"
    text = ordered(chosen, FENCE, product("%p"), COMMIT, wait(0))
    assert held(text)[-3:] == ["wait", "d", "e"]


def test_unknown_registers_are_refused():
    with pytest.raises(DSLNotImplemented, match="not in registers known here"):
        after(
            f"func.func @f(%w: i64, %d: R<f32>) {{ %true = arith.constant true\n {product()}\n return }}",
            order_registers,
        )


def test_accesses_to_vectors_become_accesses_to_registers():
    read = '%s = "cute.load"(%d, %zero) : (R<f32>, i32) -> vector<4xf32>\n %t = arith.addf %s, %s : vector<4xf32>'
    write = '"cute.store"(%t, %d, %zero) : (vector<4xf32>, R<f32>, i32) -> ()'
    text = ordered(FENCE, product(), COMMIT, wait(0), read, write)
    assert text.count('"cute.load"') == text.count('"cute.store"') == text.count("vector.extract") == 4
    check(
        text,
        """
        %a = "cute.load"(%d, %zero)
        %b = "cute.load"(%d, %one)
        vector.from_elements %a, %b
        not: vector<4xf32>, !cute
        "cute.store"(%y, %d, %zero)
        """,
    )


def test_accesses_to_other_memory_stay():
    text = ordered(
        '"cute.store"(%v, %e, %zero) : (vector<4xf32>, R<f32>, i32) -> ()', FENCE, product(), COMMIT, wait(0)
    )
    assert "(vector<4xf32>" in text and held(text) == ["store", "fence", "wgmma", "commit", "wait", "d"]


def test_halves_are_accessed_in_pairs():
    made = '%h = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f16>'
    read = '%s = "cute.load"(%h, %zero) : (R<f16>, i32) -> vector<4xf16>\n "cute.store"(%s, %h, %zero) : (vector<4xf16>, R<f16>, i32) -> ()'
    text = ordered(made, FENCE, product("%h", element="f16"), COMMIT, wait(0), read)
    assert text.count("vector<2xf16>") >= 4 and text.count('"cute.load"') == text.count('"cute.store"') == 2
    assert text.count("alignment = 4") == 4


def marked(*lines: str) -> list[bool]:
    return ["with_next" in line for line in ordered(*lines).splitlines() if '"cute_nvgpu.wgmma"' in line]


def test_products_that_follow_each_other_are_a_run():
    address = "%two = arith.constant 2 : i64\n%moved = arith.addi %w, %two : i64"
    assert marked(FENCE, product(), address, product(a="%moved"), product(), COMMIT) == [True, True, False]


def test_a_run_has_no_more_operands_in_shared_memory_than_uniform_registers_hold():
    assert marked(FENCE, *[product()] * 10, COMMIT) == [*[True] * 7, False, True, False]
    made = '%h = "cute.alloc_rmem"() {count = 8 : i64} : () -> R<f16>'
    assert marked(made, FENCE, *[product(a="%h", a_type="R<f16>")] * 17, COMMIT) == [*[True] * 15, False, False]


@pytest.mark.parametrize("between", [COMMIT, FENCE, wait(0), WRITE, "scf.if %c { }"])
def test_a_run_ends_where_something_happens(between: str):
    assert marked(FENCE, product(), between, product()) == [False, False]


def test_products_with_sums_that_are_apart_are_a_run():
    assert marked(FENCE, product(), product("%e"), product(), COMMIT) == [True, True, False]
    moved = [f'%m{n} = "cute.ptr_add"(%l, %four) : (R<f32>, i32) -> R<f32>' for n in range(2)]
    text = ordered(LONG, FENCE, product("%l"), moved[0], product("%m0"), moved[1], product("%m1"), COMMIT)
    lines = [line for line in text.splitlines() if '"cute_nvgpu.wgmma"' in line]
    assert ["with_next" in line for line in lines] == [True, True, False]
    assert len({line.split(",")[0] for line in lines}) == 2  # the same registers have one pointer


def test_products_whose_sums_overlap_are_another_run():
    wider = product("%e").replace("n = 8", "n = 16")
    assert marked(FENCE, product(), product("%e"), wider, COMMIT) == [True, False, False]
    chosen = "%p = scf.if %c -> R<f32> { scf.yield %d : R<f32> } else { scf.yield %e : R<f32> }"
    assert marked(chosen, FENCE, product(), product("%p"), COMMIT) == [False, False]


# --- names -----------------------------------------------------------------------------------------------------------


def names(*lines: str, kernels: tuple[str, ...] = ("f",)) -> list[str]:
    """The registers that products and what holds them have, in order."""
    text = ordered(*lines, kernels=kernels)
    found = re.findall(r'"cute_nvgpu\.(?:wgmma|hold_registers)"[^{]*{([^}]*)}', text)
    first = [re.search(r"first_register = (\d+)", given) for given in found]
    name = [re.search(r'registers = "(\w+)"', given) for given in found]
    return [(n.group(1) if n else "") + (f" {f.group(1)}" if f else "") for n, f in zip(name, first, strict=True)]


def test_sums_that_only_products_write_have_names():
    lines = FENCE, product(), COMMIT, product("%e"), COMMIT, wait(0)
    assert names(*lines) == ["kiln_acc_0_ 0", "kiln_acc_1_ 0", "kiln_acc_0_", "kiln_acc_1_"]
    text = ordered(*lines, kernels=("f",))
    assert text.count('".reg .b32 kiln_acc_0_<4>;"') == text.count('".reg .b32 kiln_acc_1_<4>;"') == 1
    assert names(*lines, kernels=()) == [""] * 4


CLEAR = (
    '%z = arith.constant dense<0.0> : vector<4xf32>\n"cute.store"(%z, %d, %zero) : (vector<4xf32>, R<f32>, i32) -> ()'
)
READ = '%r = "cute.load"(%d, %zero) {alignment = 16 : i64} : (R<f32>, i32) -> vector<4xf32>'
SCALE = "%s = arith.mulf %r, %v : vector<4xf32>"
KEEP = '"cute.store"(%s, %d, %zero) {alignment = 16 : i64} : (vector<4xf32>, R<f32>, i32) -> ()'


def test_who_reads_registers_that_are_scaled_copies_them():
    read, used = READ.replace("%r", "%q"), "%u = arith.addf %q, %v : vector<4xf32>"
    text = ordered(READ, SCALE, KEEP, FENCE, product(), COMMIT, wait(0), read, used, kernels=("f",))
    moves = " ".join(f"mov.b32 ${n}, kiln_acc_0_{n};" for n in range(4))
    assert text.count(f'"{moves}"') == 1
    assert text.index("wgmma_wait") < text.index(moves)
    assert "cute.load" not in text
    assert "hold_registers" not in text


@pytest.mark.parametrize("scaled", [(), (READ, SCALE, KEEP)])
def test_registers_with_names_are_cleared_themselves(scaled: tuple[str, ...]):
    zeros = "%z = arith.constant dense<0.0> : vector<8xf32>"
    part = "%y = vector.extract_strided_slice %z {offsets = [4], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>"
    clear = '"cute.store"(%y, %d, %zero) {alignment = 16 : i64} : (vector<4xf32>, R<f32>, i32) -> ()'
    lines = zeros, part, clear, *scaled, FENCE, product(), COMMIT
    assert names(*lines) == ["kiln_acc_0_ 0"]
    text = ordered(*lines, kernels=("f",))
    assert '"' + " ".join(f"mov.b32 kiln_acc_0_{n}, 0;" for n in range(4)) + '"' in text
    assert "cute.store" not in text
    assert names(zeros.replace("0.0", "-0.0"), *lines[1:])[-1] == ""


def test_registers_with_names_are_scaled_themselves():
    lines = READ, SCALE, KEEP, FENCE, product(), COMMIT
    assert names(*lines) == ["kiln_acc_0_ 0"]
    text = ordered(*lines, kernels=("f",))
    assert '"' + " ".join(f"mul.f32 kiln_acc_0_{n}, kiln_acc_0_{n}, ${n};" for n in range(4)) + '"' in text
    for word in ("cute.store", "cute.load", "arith.mulf"):
        assert word not in text


def scalings(*lines: str) -> list[list[tuple[int, int]]]:
    """Pieces of code that scale registers: the number of each, and of the operand that it is scaled by."""
    found = re.findall(r'inline_asm has_side_effects "(mul[^"]*)"', ordered(*lines, kernels=("f",)))
    return [[(int(r), int(n)) for r, n in re.findall(r"kiln_acc_0_(\d+), \$(\d+);", code)] for code in found]


def test_parts_of_registers_are_scaled():
    """As they are read and written: 16 bytes at a time, put together two by two."""
    read = [
        f'%r{n} = "cute.load"(%d, %n{n}) {{alignment = 8 : i64}} : (R<f32>, i32) -> vector<2xf32>' for n in range(2)
    ]
    places = "%n0 = arith.constant 2 : i32\n%n1 = arith.constant 0 : i32"
    joined = "%r = vector.shuffle %r0, %r1 [0, 1, 2, 3] : vector<2xf32>, vector<2xf32>"
    slices = "{{offsets = [{}], sizes = [2], strides = [1]}} : vector<4xf32> to vector<2xf32>"
    kept = [f"%p{n} = vector.extract_strided_slice %s {slices.format(2 * n)}" for n in range(2)]
    kept += [f'"cute.store"(%p{n}, %d, %n{n}) : (vector<2xf32>, R<f32>, i32) -> ()' for n in range(2)]
    before, then = (places, *read, joined, SCALE), (FENCE, product(), COMMIT)
    assert scalings(*before, *kept, *then) == [[(2, 0), (3, 1), (0, 2), (1, 3)]]
    # one factor is given once
    same = f"%b = vector.broadcast %x : f32 to vector<4xf32>\n{SCALE.replace('%v', '%b')}"
    assert scalings(places, *read, joined, same, *kept, *then) == [[(2, 0), (3, 0), (0, 0), (1, 0)]]
    # those of a few numbers, too, one after the other
    few = f"%b = vector.shuffle %v, %v [3, 1, 3, 1] : vector<4xf32>, vector<4xf32>\n{SCALE.replace('%v', '%b')}"
    assert scalings(places, *read, joined, few, *kept, *then) == [[(2, 0), (0, 0), (3, 1), (1, 1)]]
    # what happens to registers between them is between them
    other = '%q = "cute.load"(%d, %n1) : (R<f32>, i32) -> f32\n%u = arith.addf %q, %x : f32'
    assert scalings(*before, *kept[:3], other, kept[3], *then) == [[(2, 0), (3, 1)], [(0, 0), (1, 1)]]
    # not where they were read from
    swapped = [line.replace("%n0", "%m").replace("%n1", "%n0").replace("%m", "%n1") for line in kept]
    assert names(*before, *swapped, *then)[-1] == ""


@pytest.mark.parametrize("between", [KEEP, f"{FENCE}\n{product()}\n{COMMIT}\n{wait(0)}", "scf.if %c { }"])
def test_what_was_read_before_something_happened_is_no_factor(between: str):
    assert names(READ, SCALE, between, KEEP, FENCE, product(), COMMIT)[-1] == ""


def test_sums_of_which_single_registers_are_scaled_have_no_name():
    """LLVM would leave what scales them where it is."""
    read = '%r = "cute.load"(%d, %two) : (R<f32>, i32) -> f32'
    keep = '"cute.store"(%s, %d, %two) : (f32, R<f32>, i32) -> ()'
    lines = "%two = arith.constant 2 : i32", read, "%s = arith.mulf %r, %x : f32", keep, FENCE, product(), COMMIT
    assert set(names(*lines)) == {""}


@pytest.mark.parametrize("first", [CLEAR, f"{READ}\n{SCALE}\n{KEEP}"])
def test_what_is_read_at_places_that_are_not_known_is_written_there(first: str):
    """Copies of the array would not know of it."""
    number = "%i = arith.index_cast %n : index to i32"
    use = '%r0 = "cute.load"(%d, %i) : (R<f32>, i32) -> f32\n%u = arith.addf %r0, %x : f32'
    assert set(names(FENCE, product(), COMMIT, wait(0), first, number, use)) == {""}
    as_left = product("%e", "%d", "R<f32>")
    assert names(FENCE, product(), COMMIT, wait(0), first, FENCE, as_left, COMMIT)[0] == ""


def test_sums_in_parts_of_an_array_have_numbers():
    moved = '%m = "cute.ptr_add"(%l, %four) : (R<f32>, i32) -> R<f32>'
    assert names(LONG, moved, FENCE, product("%l"), product("%m"), COMMIT) == ["kiln_acc_0_ 0", "kiln_acc_0_ 4"]


def test_sums_that_the_kernel_writes_have_none():
    assert names(WRITE, FENCE, product(), COMMIT, wait(0)) == [""] * 3
    chosen = "%p = scf.if %c -> R<f32> { scf.yield %d : R<f32> } else { scf.yield %e : R<f32> }"
    assert names(chosen, FENCE, product("%p"), product(), COMMIT, wait(0)) == [""] * 4

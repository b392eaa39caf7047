"""Pages of shadow memory: the cells of global memory."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, native, ref, u32, u64
from .locations import hashed
from .memory import copy, many
from .state import MAX_PAGES, PAGE_SHIFT, Cell, Page, state


@native
def global_cell(address: u64) -> Ptr[Cell]:
    """Return the cell of a global address; None if the detector's memory is exhausted."""
    st = state.place
    key = (address >> PAGE_SHIFT) + 1
    if st.last_page != key:
        st.last_page_at = find_page(key)
        st.last_page = key
    if st.last_page_at == None:
        return None
    return ref(st.last_page_at)[(address & ((1 << PAGE_SHIFT) - 1)) >> st.global_shift]


@native
def find_page(key: u64) -> Ptr[Cell]:
    """Return the cells of a page; None if the detector's memory is exhausted."""
    st = state.place
    if st.pages == None:
        st.pages = many(Page, MAX_PAGES)
    slot = hashed(key, MAX_PAGES)
    while st.pages[slot].key != 0 and st.pages[slot].key != key:
        slot = (slot + 1) & (MAX_PAGES - 1)
    page = st.pages[slot]
    if page.key == 0:
        if st.allocated >= st.limit or st.page_count >= MAX_PAGES // 2:
            return None
        page.key = key
        page.cells = many(Cell, u64(1 << PAGE_SHIFT) >> st.global_shift)
        st.page_count += 1
    return page.cells


@native
def page_there(key: u64) -> Ptr[Cell]:
    """Return the cells of a page; None if there was no access to it."""
    st = state.place
    if st.pages == None:
        return None
    slot = hashed(key, MAX_PAGES)
    while st.pages[slot].key != 0 and st.pages[slot].key != key:
        slot = (slot + 1) & (MAX_PAGES - 1)
    return st.pages[slot].cells if st.pages[slot].key == key else Ptr[Cell](None)


@native
def refine(shift: u32) -> None:
    """Let a cell stand for fewer bytes: each part of one has what the whole had."""
    st = state.place
    parts = u64(1) << (st.global_shift - shift)
    if st.pages != None:
        for slot in range(MAX_PAGES):
            page = st.pages[slot]
            if page.key != 0:
                count = u64(1 << PAGE_SHIFT) >> shift
                cells = many(Cell, count)
                for i in range(count):
                    copy(cells[i], page.cells[i // parts])
                page.cells = cells
    st.global_shift = shift
    st.last_page = 0
    st.last_page_at = None

"""The roles of the warps of a warp-specialised kernel: what each does, its registers, and where roles meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from ... import Boolean, Int32, pipeline
from ...base_dsl.diagnostics import type_error
from ...cute import arch
from ...hardware import limits

_WARPS = limits.WARPGROUP // limits.WARP


class WarpgroupRole(NamedTuple):
    """Warpgroups with one role, and the registers of each of their threads."""

    name: str
    registers: int
    warpgroups: int = 1
    warps: tuple[str, ...] = ()
    """What its warps do, from the first on, where they differ; neighbours of one name share it, and warps behind them do
    nothing."""


class RoleBarrier(NamedTuple):
    """Named barriers at which roles meet: `count` of one kind."""

    name: str
    warps: Mapping[str, int]
    """How many warps of each role arrive at one of them."""
    count: int = 1


class WarpRoles:
    """The roles of a CTA's warps in the order of their numbers, checked as a whole.

    Registers are those of whole warpgroups, as `setmaxnreg` needs it, and all together no more than the CTA starts with,
    or the last warpgroup would wait for them forever. Named barriers have numbers in the order of `barriers`, from 1 on.
    """

    __kiln_fixed__ = True

    def __init__(self, *roles: WarpgroupRole, barriers: tuple[RoleBarrier, ...] = ()) -> None:
        self.roles = roles
        self.barriers = barriers
        self.warpgroups: int = sum(role.warpgroups for role in roles)
        self._check_roles()
        self.threads: int = limits.WARPGROUP * self.warpgroups
        self.registers_at_start: int = limits.registers_at_start(self.threads, 1)
        self._check_registers()
        self._check_barriers()

    def warps(self, name: str) -> int:
        """Return how many warps have a role."""
        for role in self.roles:
            if name == role.name:
                return role.warpgroups * _WARPS
            if name in role.warps:
                return role.warps.count(name)
        raise type_error(f"no warp has the role {name!r}", f"the roles are {self._listed()}")

    def first(self, name: str) -> int:
        """Return the number of the first warp of a role."""
        self.warps(name)
        number = 0
        for role in self.roles:
            if name in role.warps:
                return number + role.warps.index(name)
            if name == role.name:
                break
            number += role.warpgroups * _WARPS
        return number

    def has(self, warp: Int32, name: str) -> Boolean:
        """Return whether a warp has a role."""
        first = self.first(name)
        count = self.warps(name)
        return warp == first if count == 1 else (warp >= first) & (warp < first + count)

    def is_up_to(self, warp: Int32, name: str) -> Boolean:
        """Return whether a warp has a role, or one of those before it."""
        return warp < self.first(name) + self.warps(name)

    def index(self, warp: Int32, name: str) -> Int32:
        """Return the number of a warp's warpgroup among those of its role."""
        self._role(name)
        return warp // _WARPS - self.first(name) // _WARPS

    def registers(self, name: str) -> int:
        """Return the registers of a thread of a role."""
        return self._role(name).registers

    def set_registers(self, name: str) -> None:
        """Give the threads of a role their registers; all warps of its warpgroups call it."""
        registers = self.registers(name)
        if registers < self.registers_at_start:
            arch.setmaxregister_decrease(registers)
        elif registers > self.registers_at_start:
            arch.setmaxregister_increase(registers)

    def barrier(self, name: str, number: Int32 | int = 0) -> pipeline.NamedBarrier:
        """Return a named barrier, or one of several by its number among them."""
        first = 1
        for barrier in self.barriers:
            if barrier.name == name:
                if isinstance(number, int) and not 0 <= number < barrier.count:
                    raise type_error(f"barrier {number} of {barrier.count} for {name!r}", f"0 to {barrier.count - 1}")
                return pipeline.NamedBarrier(first + number, limits.WARP * sum(barrier.warps.values()))
            first += barrier.count
        names = ", ".join(repr(barrier.name) for barrier in self.barriers)
        raise type_error(f"there is no barrier {name!r}", f"the barriers are {names or 'none'}")

    def _role(self, name: str) -> WarpgroupRole:
        for role in self.roles:
            if name == role.name:
                return role
            if name in role.warps:
                raise type_error(
                    f"{name!r} is one warp of the warpgroup {role.name!r}, and registers are those of whole warpgroups",
                    f"name the role {role.name!r}",
                )
        raise type_error(f"no warpgroup has the role {name!r}", f"the roles are {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(repr(name) for role in self.roles for name in dict.fromkeys((role.name, *role.warps)))

    def _check_roles(self) -> None:
        names = [name for role in self.roles for name, _ in itertools.groupby((role.name, *role.warps))]
        for name in names:
            if names.count(name) > 1:
                raise type_error(f"two roles are called {name!r}", "a role has a name of its own")
        for role in self.roles:
            if role.warpgroups < 1:
                raise type_error(
                    f"the role {role.name!r} has {role.warpgroups} warpgroups", "leave it out, or at least 1"
                )
            if len(role.warps) > _WARPS * role.warpgroups:
                raise type_error(
                    f"the role {role.name!r} names {len(role.warps)} warps, and has {_WARPS * role.warpgroups}",
                    "give it another warpgroup",
                )
        if not 1 <= limits.WARPGROUP * self.warpgroups <= limits.THREADS_PER_BLOCK:
            raise type_error(
                f"the roles have {self.warpgroups} warpgroups",
                f"1 to {limits.THREADS_PER_BLOCK // limits.WARPGROUP}: a CTA has at most {limits.THREADS_PER_BLOCK} threads",
            )

    def _check_registers(self) -> None:
        least, most = limits.SET_REGISTERS
        for role in self.roles:
            if not least <= role.registers <= most or role.registers % limits.REGISTER_UNIT:
                raise type_error(
                    f"a thread of {role.name!r} has {role.registers} registers",
                    f"a multiple of {limits.REGISTER_UNIT} from {least} to {most}",
                )
        requested = sum(role.warpgroups * role.registers for role in self.roles)
        available = self.warpgroups * self.registers_at_start
        if requested > available:
            parts = ", ".join(f"{role.name}: {role.warpgroups} x {role.registers}" for role in self.roles)
            raise type_error(
                f"the roles ask for {requested} registers of one thread of each warpgroup ({parts})",
                f"{self.threads} threads start with {self.registers_at_start} each: at most {available} together",
            )

    def _check_barriers(self) -> None:
        names = [barrier.name for barrier in self.barriers]
        for barrier in self.barriers:
            if names.count(barrier.name) > 1:
                raise type_error(f"two barriers are called {barrier.name!r}", "one with a count")
            for name, warps in barrier.warps.items():
                if not 1 <= warps <= self.warps(name):
                    raise type_error(
                        f"the barrier {barrier.name!r} counts {warps} warps of {name!r}, which has {self.warps(name)}",
                        "all that arrive at it: it would wait for the others forever",
                    )
        count = sum(barrier.count for barrier in self.barriers)
        if count >= limits.BARRIERS:
            raise type_error(
                f"the roles have {count} named barriers",
                f"at most {limits.BARRIERS - 1}: of the {limits.BARRIERS}, barrier 0 is that of sync_threads()",
            )

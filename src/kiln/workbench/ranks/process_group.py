"""Process groups of torch.distributed whose ranks are threads.

They are the backend "kiln", which stands in for the one that a program names. Torch's own functions call it, and keep
what they know of groups in an object for each rank.
"""

# pyright: reportIncompatibleMethodOverride=false, reportCallIssue=false, reportAssignmentType=false, reportPrivateImportUsage=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..serve_cuda import ranks, streams
from . import checked, collectives
from . import world as worlds

BACKEND = "kiln"
T = TypeVar("T")
Tensors = Sequence[torch.Tensor]
Lists = Sequence[Tensors]
"""Where others have several devices for each rank; here the first list is all."""


class _GroupOptions(Protocol):
    """What torch tells of a group that it makes."""

    group_rank: int
    group_size: int
    group_id: str
    global_ranks_in_group: Sequence[int]


class _Work(dist.Work):
    """An operation that is complete when `finish`, if any, has returned."""

    def __init__(self, finish: Callable[[], None] | None = None, result: object = (), source: int = -1) -> None:
        super().__init__()
        self._finish = finish
        self._result = result
        self._source = source

    def wait(self, timeout: object = None) -> bool:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return self._finish is None

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> object:
        self.wait()
        return self._result

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[object]:
        self.wait()
        future: torch.futures.Future[object] = torch.futures.Future()
        future.set_result(self._result)
        return future


class _Mail:
    """Tensors that were sent and not received, by group, sender, receiver and tag."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[str, int, int, int], list[tuple[torch.Tensor, object]]] = {}


_mail = _Mail()


class ThreadGroup(dist.ProcessGroup):
    """A process group of ranks that are threads. `members` are the ranks of the world, in the group's order."""

    def __init__(self, rank: int, members: Sequence[int], name: str) -> None:
        super().__init__(rank, len(members))
        self.place: int = rank
        self.members: tuple[int, ...] = tuple(members)
        self.key: str = name

    def _meet(self, what: str, data: T, work: Callable[[Sequence[T]], None], result: object = ()) -> _Work:
        def in_order(by_rank: Mapping[int, T]) -> None:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                work([by_rank[member] for member in self.members])

        streams.finish_current()
        worlds.world().meet(self.key, self.members, what, data, in_order)
        return _Work(result=result)

    def allreduce(self, tensors: torch.Tensor | Tensors, opts: dist.AllreduceOptions | None = None) -> _Work:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        plain = _detached(tensors)
        return self._meet("all_reduce()", plain, lambda data: collectives.all_reduce(data, op), tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: dist.ReduceOptions) -> _Work:
        work = lambda data: collectives.reduce(data, opts.reduceOp, opts.rootRank)
        return self._meet("reduce()", _detached(tensors), work, tensors)

    def barrier(self, opts: dist.BarrierOptions | None = None) -> _Work:
        return self._meet("barrier()", None, lambda data: None)

    def monitored_barrier(self, timeout: object = None, wait_all_ranks: bool = False) -> None:
        self.barrier()

    def broadcast(self, tensors: Tensors, opts: dist.BroadcastOptions) -> _Work:
        work = lambda data: collectives.broadcast(data, opts.rootRank)
        return self._meet("broadcast()", _detached(tensors), work, tensors)

    def allgather(self, outputs: Lists, inputs: Tensors, opts: object = None) -> _Work:
        data = (_detached(outputs[0]), _detached(inputs)[0])
        return self._meet("all_gather()", data, collectives.all_gather, outputs)

    def gather(self, outputs: Lists, inputs: Tensors, opts: dist.GatherOptions) -> _Work:
        data = (_detached(outputs[0]) if outputs else [], _detached(inputs)[0])
        return self._meet("gather()", data, lambda data: collectives.gather(data, opts.rootRank), outputs)

    def scatter(self, outputs: Tensors, inputs: Lists, opts: dist.ScatterOptions) -> _Work:
        data = (_detached(outputs)[0], _detached(inputs[0]) if inputs else [])
        return self._meet("scatter()", data, lambda data: collectives.scatter(data, opts.rootRank), outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: dist.ReduceScatterOptions) -> _Work:
        data = (_detached(outputs)[0], _detached(inputs[0]))
        work = lambda data: collectives.reduce_scatter(data, opts.reduceOp)
        return self._meet("reduce_scatter()", data, work, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> _Work:
        data = (_detached(outputs), _detached(inputs))
        return self._meet("all_to_all()", data, collectives.all_to_all, outputs)

    # collectives of tensors that are the lists of others, one after another

    def _parts(self, tensor: torch.Tensor, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        """Return the parts of a tensor for each rank, of some sizes in its first mode, by default all alike."""
        plain = _detached([tensor])[0]
        count = len(self.members)
        if sizes:
            return list(torch.split(plain, list(sizes)))
        if not plain.dim() or plain.shape[0] % count:
            return list(plain.reshape(count, -1).unbind()) if plain.is_contiguous() else list(plain.chunk(count))
        return list(torch.split(plain, plain.shape[0] // count)) if plain.shape[0] else [plain] * count

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: object = None) -> _Work:
        plain = _detached([source])[0]
        parts = [part.view(plain.shape) for part in self._parts(output)]
        return self._meet("all_gather_into_tensor()", (parts, plain), collectives.all_gather, output)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: dist.ReduceScatterOptions
    ) -> _Work:
        plain = _detached([output])[0]
        parts = [part.reshape(plain.shape) for part in self._parts(source)]
        work = lambda data: collectives.reduce_scatter(data, opts.reduceOp)
        return self._meet("reduce_scatter_tensor()", (plain, parts), work, output)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: object = None,
    ) -> _Work:
        data = (self._parts(output, output_sizes or ()), self._parts(source, input_sizes or ()))
        return self._meet("all_to_all_single()", data, collectives.all_to_all, output)

    # their names before torch 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> _Work:
        for output, source in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, source)
        return _Work(result=outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: dist.ReduceScatterOptions
    ) -> _Work:
        for output, source in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, source, opts)
        return _Work(result=outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> _Work:
        streams.finish_current()
        world = worlds.world()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            copy = tensors[0].detach().clone()
        point = checked.point()
        with world.changed:
            _mail.boxes.setdefault((self.key, self.place, destination, tag), []).append((copy, point))
            world.changed.notify_all()
        return _Work(result=tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> _Work:
        key = self.key, source, self.place, tag
        return _Work(functools.partial(self._receive, tensors[0], [key]), tensors, source)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> _Work:
        keys = [(self.key, source, self.place, tag) for source in range(len(self.members)) if source != self.place]
        work = _Work(None, tensors)

        def receive() -> None:
            work._source = self._receive(tensors[0], keys)

        work._finish = receive
        return work

    def _receive(self, tensor: torch.Tensor, keys: Sequence[tuple[str, int, int, int]]) -> int:
        """Wait for a tensor that was sent under one of the keys, copy it, and return its sender."""
        streams.finish_current()
        world = worlds.world()
        full = lambda: [key for key in keys if _mail.boxes.get(key)]
        senders = [self.members[key[1]] for key in keys]
        with world.changed:
            world.wait_until("recv()", lambda: bool(full()), lambda: senders)
            key = full()[0]
            sent, point = _mail.boxes[key].pop(0)
        checked.after(point)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            tensor.detach().copy_(sent)
        return key[1]

    def size(self) -> int:
        return len(self.members)

    def rank(self) -> int:
        return self.place

    @property
    def group_name(self) -> str:
        return distributed_c10d._world.pg_names[self]

    pg_name = group_name

    def getBackendName(self) -> str:
        return BACKEND

    name = getBackendName

    def shutdown(self) -> None:
        """Do nothing: nothing is left."""

    abort = shutdown

    def __repr__(self) -> str:
        return f"<process group of ranks {self.members}, here {self.place}>"


def _detached(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with torch._C.DisableTorchFunction():
        return [tensor.detach() for tensor in tensors]


def _create(options: _GroupOptions, _: object) -> ThreadGroup:
    """Make a group for torch's `_new_process_group_helper`."""
    members = list(options.global_ranks_in_group) or range(options.group_size)
    return ThreadGroup(options.group_rank, members, options.group_id)


class _RankWorld(distributed_c10d._World):
    """What torch knows of the groups of one rank, by the names of its own `_World`."""

    def __init__(self) -> None:
        self.pg_coalesce_state = {}


def _own_state(name: str) -> property:
    """Return an attribute that is an object's own, where torch's is a global variable."""
    empty = getattr(distributed_c10d._world, name)
    key = f"own_{name}"

    def read(self: object) -> object:
        return vars(self).setdefault(key, None if empty is None else type(empty)())

    def write(self: object, value: object) -> None:
        vars(self)[key] = value

    return property(read, write)


for _name, _value in vars(distributed_c10d._World).items():
    if isinstance(_value, property) and _name != "pg_config_info":
        setattr(_RankWorld, _name, _own_state(_name))


class _WorldOfRank:
    """`torch.distributed.distributed_c10d._world`: that of the thread's rank."""

    def __init__(self, size: int) -> None:
        self.__dict__["worlds"] = [_RankWorld() for _ in range(size)]

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["worlds"][ranks.current() or 0], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["worlds"][ranks.current() or 0], name, value)


def serve(size: int) -> None:
    """Let torch.distributed make groups of the ranks of this process."""
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    module: Any = distributed_c10d
    module._world = _WorldOfRank(size)
    store = dist.HashStore()
    plain_init = module.init_process_group
    plain_new = module._new_process_group_helper
    of_new = inspect.signature(plain_new)

    @functools.wraps(plain_init)
    def init_process_group(backend: object = None, *args: object, **options: object) -> None:
        of_init = inspect.signature(plain_init).bind(backend, *args, **options).arguments
        kept = {name: of_init[name] for name in ("timeout", "group_name") if name in of_init}
        hook = sys.excepthook
        plain_init(BACKEND, rank=ranks.current() or 0, world_size=size, store=store, **kept)
        sys.excepthook = hook  # each rank would put its own before those of others
        name_backend(dist.GroupMember.WORLD, backend)

    @functools.wraps(plain_new)
    def new_process_group(*args: object, **options: object) -> tuple[object, object]:
        bound = of_new.bind(*args, **options)
        asked = bound.arguments["backend"]
        bound.arguments.update(backend=dist.Backend(BACKEND), backend_options=None, device_id=None)
        group, prefix = plain_new(*bound.args, **bound.kwargs)
        if isinstance(group, ThreadGroup) and asked != BACKEND:
            name_backend(group, asked)
        return group, prefix

    def name_backend(group: object, backend: object) -> None:
        """Let a group answer to the name of the backend that the program asked for."""
        asked = str(backend or "nccl")
        plain = "nccl" if ":" in asked or asked in ("undefined", BACKEND) else asked
        groups = module._world.pg_map
        groups[group] = (plain, groups[group][1])

    module.init_process_group = dist.init_process_group = init_process_group
    module._new_process_group_helper = new_process_group
    module.is_nccl_available = dist.is_nccl_available = lambda: True


def begin_thread() -> None:
    """Let torch's registry of groups be this thread's own: every rank has a group of each name."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)

"""The one line that a user writes: check everything, agree with the other ranks, register the hook."""

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire import comm
from thinwire.compress import Codec, Key, Method, State, TwoRoundCodec, parse, unit_hash
from thinwire.exchange.handle import HookSlot, Sync, hook
from thinwire.exchange.layout import Region
from thinwire.exchange.memory import ErrorMemory
from thinwire.exchange.pipeline import Exchange
from thinwire.exchange.program import Unit
from thinwire.exchange.settings import Settings, check_executable, check_patterns, strategy_by_name
from thinwire.strategy import UNCOMPRESSED, Choice, Strategy


class LossScaler(Protocol):
    """What is needed of a ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """The factor that the loss is multiplied by."""
        ...


@dataclass(frozen=True, slots=True)
class _Prepared:
    strategy: Strategy
    compressors: Mapping[str, Method]
    settings: Settings
    parameters: Mapping[str, nn.Parameter]
    error_units: "_ErrorUnits"
    device: torch.device


def attach(
    module: nn.Module,
    spec: str | Method | Mapping[str, str | Method] | None = None,
    *,
    strategy: str | Path | Strategy | None = None,
    scheme: str | None = None,
    error_feedback: bool | None = None,
    min_numel: int = 1024,
    compress_vectors: bool = False,
    exclude: Sequence[str] = (),
    chunk_bytes: int = 4 << 20,
    seed: int = 0,
    num_threads: int | None = None,
    start_step: int = 0,
    scaler: LossScaler | None = None,
    optimizer: Optimizer | None = None,
) -> Sync:
    """Let a DDP module exchange its gradients compressed. The training loop stays as it is.

    Collective over DDP's process group: every rank calls it with the same settings, before the first backward.
    A copy of the module, or one that was saved and loaded as a whole, must be attached anew.
    Kernels are compiled here, once for a machine (they are cached on disk).

    Args:
        module: a ``DistributedDataParallel``, also inside ``torch.compile``.
        spec: a compressor for all gradients, like ``"topk(ratio=0.01)"``; ``thinwire compressors`` lists them. Or one
            for each pattern of parameter names, of which the first that fits counts:
            ``{"*embedding*": "int8", "*": "topk(ratio=0.01)"}``. What fits none, sparse gradients, and those of
            parameters that are frozen now, are all-reduced as they are.
        strategy: instead of ``spec``, what to do with each gradient: a :class:`thinwire.Strategy`, or its file.
        scheme: how payloads cross the network: ``allreduce``, ``reduce_scatter`` (reducible compressors only),
            ``allgather``, or ``alltoall`` (two-way: each rank is the server of a part, and compresses again). None
            chooses by payload size and number of ranks.
        error_feedback: keep what compression drops and add it to the next gradient. None: for all compressors that are
            not unbiased. Costs two float32 copies of the compressed parameters on each rank.
        min_numel: smaller gradients are all-reduced as they are, fused into one buffer for each DDP bucket.
        compress_vectors: compress gradients of one-dimensional parameters (biases, norms) too.
        exclude: patterns of parameter names, like ``["*embedding*"]``, whose gradients are all-reduced as they are.
        chunk_bytes: larger gradients (in float32) are cut: parts are encoded, sent and decoded at the same time.
        seed: of all randomness in compression.
        num_threads: worker threads on this rank. None: half of its cores, from 1 to 4.
        start_step: so many steps are exchanged uncompressed at first.
        scaler: the GradScaler in use, if any: errors then follow its scale. Without it, each change of scale gives the
            errors of one step the wrong weight.
        optimizer: rescale errors by lr(then) / lr(now) when the learning rate changes (learning-rate-corrected error
            feedback, BytePS-Compress, arXiv 2105.07829). None: errors keep their value.

    Returns:
        The handle: ``state_dict``, ``load_state_dict``, ``stats``, ``detach``.

    Raises:
        TypeError: if the module is not a DDP module, or a parameter's gradient cannot be exchanged.
        ValueError: for a setting out of range, a strategy that does not fit, a module that has a hook already, or
            settings that differ between ranks; on every rank, before anything is changed.
    """
    ddp = _ddp(module)
    group = ddp.process_group
    # By the names that they have without torch.compile, so that patterns and saved states fit with and without.
    named = {n.replace("_orig_mod.", ""): p for n, p in ddp.module.named_parameters()}

    def prepare() -> _Prepared:
        settings = Settings(
            scheme=scheme,
            error_feedback=error_feedback,
            min_numel=min_numel,
            compress_vectors=compress_vectors,
            exclude=exclude if isinstance(exclude, str | None) else tuple(exclude),
            chunk_bytes=chunk_bytes,
            seed=seed,
            num_threads=num_threads,
            start_step=start_step,
        )
        _check_free(ddp)
        parameters = {n: p for n, p in named.items() if p.requires_grad and n not in ddp.parameters_to_ignore}
        error_units = _error_units(parameters, scaler, optimizer)
        ready = _prepare(named, parameters, spec, strategy, settings, error_units, group.size())
        _compile_kernels(ready.compressors.values())
        return ready

    ready = comm.agree(group, prepare, _describe)
    num_phases = max((len(c.option.routines) for c in ready.strategy.gradients.values()), default=1)
    registered = _slot(ddp)
    slot = registered or HookSlot(group)
    slot.phase_groups += comm.like(group, num_phases - len(slot.phase_groups), ready.device)
    slot.exchange = _exchange(ready, named, slot)
    if registered is None:
        ddp.register_comm_hook(slot, hook)
    return Sync(slot, slot.exchange, ready.strategy)


def _exchange(ready: _Prepared, named: Mapping[str, nn.Parameter], slot: HookSlot) -> Exchange:
    settings = ready.settings

    def new_state(region: Region) -> State | None:
        method = ready.compressors[ready.strategy.gradients[region.name].compressor]
        shape = ready.parameters[region.name].shape if method.whole else (region.numel,)
        return method.new_state(shape, Key(settings.seed, 0, unit_hash(str(region))))

    memory = ErrorMemory(ready.device, new_state)

    def make_unit(regions: Sequence[Region], choice: Choice, riders: Sequence[Region]) -> Unit:
        method = ready.compressors[choice.compressor]
        with_error = method.keeps_errors if settings.error_feedback is None else settings.error_feedback
        return Unit(
            regions,
            choice.option,
            method,
            slot.phase_groups,
            slot.group.rank(),
            memory,
            error_feedback=with_error,
            riders=riders,
        )

    return Exchange(
        # What is frozen now is exchanged as it is, should it be trained later.
        choices={n: Choice(numel=p.numel()) for n, p in named.items()} | dict(ready.strategy.gradients),
        names={id(p): n for n, p in named.items()},
        group=slot.group,
        phase_groups=slot.phase_groups,
        make_unit=make_unit,
        sees_whole=lambda choice: ready.compressors[choice.compressor].whole,
        memory=memory,
        max_numel=settings.max_numel,
        num_threads=settings.threads(),
        seed=settings.seed,
        start_step=settings.start_step,
        error_units=ready.error_units.now,
    )


def _ddp(module: nn.Module) -> DistributedDataParallel:
    inner = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    if isinstance(inner, DistributedDataParallel):
        return inner
    raise TypeError(
        f"thinwire.attach needs a torch.nn.parallel.DistributedDataParallel module, not {type(inner).__name__}. "
        "Wrap the model first: ddp = DistributedDataParallel(model). FSDP shards gradients and is not supported yet."
    )


def _slot(ddp: DistributedDataParallel) -> HookSlot | None:
    """What an earlier attach registered; a copied module lists None for it."""
    return next((state for _, state in ddp._comm_hooks if isinstance(state, HookSlot)), None)


def _check_free(ddp: DistributedDataParallel) -> None:
    slot = _slot(ddp)
    if slot is not None and slot.exchange is not None:
        raise ValueError("thinwire is attached to this module already; call detach() on the first handle before")
    if others := [other for other, _ in ddp._comm_hooks if other is not hook]:
        taken = getattr(others[0], "__name__", "a hook")
        raise ValueError(f"this module has a communication hook already ({taken}); DDP takes only one, so leave it out")


def _prepare(
    named: Mapping[str, nn.Parameter],
    parameters: Mapping[str, nn.Parameter],
    spec: str | Method | Mapping[str, str | Method] | None,
    strategy: str | Path | Strategy | None,
    settings: Settings,
    error_units: "_ErrorUnits",
    world_size: int,
) -> _Prepared:
    if (spec is None) == (strategy is None):
        raise ValueError('give either a compressor, like "topk(ratio=0.01)", or strategy=...')
    devices = {p.device for p in parameters.values()}
    if devices - {torch.device("cpu")}:
        raise TypeError(f"parameters are on {', '.join(map(str, devices))}; this release exchanges CPU gradients only")
    for name, p in parameters.items():
        if not p.is_floating_point() and not p.is_complex():
            raise TypeError(f"parameter {name!r} is of {p.dtype}; gradients must be floating-point or complex")
    compressors: dict[str, Method] = {"none": parse("none")}
    if spec is not None:
        if isinstance(spec, Mapping) and not spec:
            raise ValueError('no compressor given: the mapping is empty; write {"*": "topk(ratio=0.01)"}, or "none"')
        by_name = {n: parse(s) for n, s in spec.items()} if isinstance(spec, Mapping) else {"*": parse(spec)}
        check_patterns([*by_name, *settings.exclude] if named else [], named)
        compressors.update({str(c): c for c in by_name.values()})
        plan = strategy_by_name(parameters, by_name, settings, world_size)
    else:
        assert strategy is not None
        settings.check_beside_strategy()
        if not isinstance(strategy, str | Path | Strategy):
            raise TypeError(f"strategy is a thinwire.Strategy or the path of its file, not {type(strategy).__name__}")
        plan = strategy if isinstance(strategy, Strategy) else _load(strategy)
        plan.check_fits({n: p.numel() for n, p in parameters.items()}, world_size)
        compressors.update({c.compressor: parse(c.compressor) for c in plan.gradients.values()})
    check_executable(plan, compressors, {n: p.shape for n, p in parameters.items()}, settings)
    for name, p in parameters.items():
        if p.is_complex() and plan.gradients[name].option.compresses:
            raise TypeError(f"parameter {name!r} is of {p.dtype}, which is not compressed; give it {UNCOMPRESSED}")
    return _Prepared(plan, compressors, settings, parameters, error_units, torch.device("cpu"))


def _load(path: str | Path) -> Strategy:
    try:
        return Strategy.load(path)
    except OSError as error:
        raise ValueError(f"strategy={str(path)!r} cannot be read ({error.strerror}); give a strategy's file") from error


def _describe(ready: _Prepared) -> Mapping[str, object]:
    """What must be equal on all ranks, by the names that users know."""
    settings = asdict(ready.settings)
    del settings["num_threads"]  # machines may differ
    kinds = sorted({c.compressor for c in ready.strategy.gradients.values()} - {"none"})
    shapes = [(n, tuple(p.shape), str(p.dtype)) for n, p in ready.parameters.items()]
    return {
        "compressor": ", ".join(kinds) or "none",
        **settings,
        "scaler and optimizer": ready.error_units.given,
        "the model's trainable parameters": f"{len(shapes)} with digest {_digest(repr(shapes))}",
        "strategy": f"digest {_digest(ready.strategy.dumps())}",
    }


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class _ErrorUnits:
    """Called once a step, gives the unit of every parameter's errors: loss scale / learning rate, where given."""

    given: str
    now: Callable[[], Callable[[str], float]]


def _error_units(
    parameters: Mapping[str, nn.Parameter], scaler: LossScaler | None, optimizer: Optimizer | None
) -> _ErrorUnits:
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise TypeError(f"scaler is a torch.amp.GradScaler, or None, not {type(scaler).__name__}")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(f"optimizer is a torch.optim.Optimizer, or None, not {type(optimizer).__name__}")
    names = {id(p): n for n, p in parameters.items()}
    if optimizer is not None and not any(id(p) in names for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("optimizer has none of the module's trainable parameters; give the one that updates them")
    given = ", ".join(n for n, value in (("scaler", scaler), ("optimizer", optimizer)) if value is not None) or "none"
    rates: dict[str, float] = {}

    def now() -> Callable[[str], float]:
        scale = float(scaler.get_scale()) if scaler is not None else 1.0
        for param_group in optimizer.param_groups if optimizer is not None else ():
            for p in param_group["params"]:
                if (name := names.get(id(p))) is not None:
                    # What a step at rate 0 drops is worth nothing, and what was dropped before keeps its worth.
                    rates[name] = float(param_group["lr"]) or rates.get(name, 1e-30)
        return lambda name: scale / rates.get(name, 1.0)

    return _ErrorUnits(given, now)


def _compile_kernels(methods: Iterable[Method]) -> None:
    """Run every kernel once on a few numbers: numba compiles at the first call, and keeps the result on disk."""
    slow = threading.Timer(
        2.0,
        print,
        ["thinwire: loading kernels, or compiling new ones ..."],
        {"file": sys.stderr, "flush": True},
    )
    slow.daemon = True
    slow.start()
    key = Key(seed=0, step=0, unit=0)
    x = torch.linspace(-1.0, 1.0, 64)
    try:
        for method in methods:
            for phase in {method.phase(step) for step in range(2)}:
                _try(method, phase, x, key)
    finally:
        slow.cancel()


def _try(method: Method, phase: int, x: Tensor, key: Key) -> None:
    try:
        codec = method.codec(phase, method.new_state((8, 8) if method.whole else x.shape, key))
        payload = _try_encoding(codec, x, key)
        if isinstance(codec, TwoRoundCodec):
            codec.absorb(payload)
            codec = codec.second
            payload = _try_encoding(codec, x, key)
        codec.decode(payload.unsqueeze(0), torch.empty_like(x), key)
        codec.is_finite(payload.unsqueeze(0))
    except Exception as error:
        raise ValueError(
            f"compressor {method} fails on a trial vector of {x.numel()} elements: {type(error).__name__}: {error}"
        ) from error


def _try_encoding(codec: Codec, x: Tensor, key: Key) -> Tensor:
    payload = torch.zeros(codec.payload_nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, key)
    codec.encode_with_error(x, torch.zeros_like(x), torch.empty_like(x), payload, key)
    return payload

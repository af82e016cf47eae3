"""Carry weights from the trainer into the running engines of the same machine.

Guarantee: after ``push_weights`` every engine holds exactly the given tensors and reports the version, read back. An
engine that has the version already is left alone, so a repeated push is harmless. While an update runs the engine's
version is no number (``updating-<version>``): whoever finds it like that knows that a push broke off, and pushes again.

Tensors go in buckets of bounded size (``relax_core.weights.bucket``): through memory that both processes map, or by
broadcasts (``relax_core.weights.group``).
"""

import functools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data.errors import UserError
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.weights.bucket import NamedTensors
from relax_core.weights.group import GroupLink
from relax_core.weights.load import Route, connected, load


class WeightsDiffer(UserError):
    """An engine's weights are not the trainer's."""


@dataclass(frozen=True)
class PushReport:
    """What a push did.

    Attributes:
        seconds: wall time.
        bytes: size of the tensors.
        buckets: number of buckets.
        engines: seconds that each engine needed for its part; 0 for one that had the version already.
        setup: seconds of ``seconds`` that making a group of processes took: in the first push, and after a loss.
    """

    seconds: float
    bytes: int
    buckets: int
    engines: dict[str, float]
    setup: float = 0.0


def versions_of(urls: Sequence[str]) -> dict[str, str]:
    """The version that each engine reports."""
    with connected(urls) as engines:
        return dict(zip(urls, engines.each(EngineControl.weight_version), strict=True))


def stale_engines(urls: Sequence[str], version: int | str) -> list[str]:
    """The engines that do not hold ``version``: those that ``push_weights`` would update.

    A trainer of several ranks asks first: they make the tensors together, so all must know whether any are wanted.
    """
    return [url for url, seen in versions_of(urls).items() if seen != str(version)]


def push_weights(
    tensors: NamedTensors,
    urls: Sequence[str],
    version: int | str,
    bucket_bytes: int,
    tp_size: int = 1,
    *,
    elsewhere: bool = False,
    link: GroupLink | None = None,
    seen: Mapping[str, str] | None = None,
) -> PushReport:
    """Bring the engines to ``version``.

    Args:
        tensors: Hugging Face names and whole tensors, on one device; read lazily, a bucket at a time, and not at all
            when every engine has the version.
        urls: the engines.
        version: policy version, or its label (``relax_core.weights.label``).
        bucket_bytes: size of a bucket (``--update-weight-buffer-size``); a larger tensor has a bucket of its own. On a
            GPU there are two of them at a time.
        tp_size: tensor-parallel size of the engines.
        elsewhere: engines may be on other devices than the tensors.
        link: broadcast in its groups, rather than through memory that is mapped.
        seen: the versions that all engines report, where they have just been asked; ``link`` gives up other engines.

    Raises:
        EngineUnavailable, EngineRefused: an engine failed; it reports no numeric version then.
        UserError: the shared memory is too small.
    """
    start = time.perf_counter()
    seen = versions_of(urls) if seen is None else seen
    stale = [url for url in urls if seen[url] != str(version)]
    spent = dict.fromkeys(urls, 0.0)
    if not stale:
        return PushReport(time.perf_counter() - start, 0, 0, spent)
    if link is not None:
        link.keep(seen)
    with connected(stale) as engines:
        mark = functools.partial(_suspend, version=f"updating-{version}")
        route = Route(bucket_bytes, tp_size, elsewhere, link, seen)
        loaded = load(tensors, engines, route, mark)
        # The version comes last: an engine that has it is ready, and is left alone for ever.
        engines.each(functools.partial(_release, version=str(version)))
        if link is not None:
            for url in stale:
                link.arrived(url, str(version))
    spent |= dict(zip(stale, loaded.engines, strict=True))
    return PushReport(time.perf_counter() - start, loaded.bytes, loaded.buckets, spent, loaded.setup)


def check_equal(
    tensors: NamedTensors,
    urls: Sequence[str],
    bucket_bytes: int = 512 * 1024**2,
    tp_size: int = 1,
    *,
    elsewhere: bool = False,
    link: GroupLink | None = None,
) -> None:
    """Prove that the engines hold exactly these tensors (``--check-weight-update-equal``).

    Each engine copies its weights, overwrites them with random numbers (which the comparison must notice: a check that
    cannot fail proves nothing), receives all tensors anew and compares every element of every parameter with the copy,
    bit by bit, in its own data type. That is SGLang's own check, the same on a CPU and on CUDA; it costs a second push
    and, on the host, the memory of a second set of weights. What SGLang derives itself (rotary tables) is not compared.
    Afterwards an engine that passed reports its former version.

    Args:
        tensors: what was pushed.
        urls, bucket_bytes, tp_size, elsewhere, link: as for ``push_weights``.

    Raises:
        EngineUnavailable: the engine's comparison does not work; its weights are random then, its version ``checking``.
        WeightsDiffer: naming the engine and its parameters that differ (SGLang's names: q, k and v are one tensor).
            It then reports the version ``unequal-...``, so that nobody generates with it unknowingly.
    """
    with connected(urls) as engines:
        versions = engines.each(EngineControl.weight_version)
        engines.each(_scramble)
        seen = dict(zip(urls, versions, strict=True))
        load(tensors, engines, Route(bucket_bytes, tp_size, elsewhere, link, seen))
        problems = engines.each(_compare)
        for engine, version, problem in zip(engines.all, versions, problems, strict=True):
            if problem:
                engine.set_weight_version(f"unequal-{version}")
            else:  # also beside one that differs: an engine with a version is left alone, paused or not
                _release(engine, version)
        if any(problems):
            raise WeightsDiffer(
                f"After the weight sync the weights of {sum(map(bool, problems))} of {len(urls)} engines differ "
                "from the trainer's.",
                "This is a fault of the weight conversion or of the transport: do not go on with this run.",
                "\n".join(
                    f"{engine.name}: {problem}"
                    for engine, problem in zip(engines.all, problems, strict=True)
                    if problem
                ),
            )


# -- what one engine is told ------------------------------------------------------------------------------------


def _suspend(engine: EngineControl, version: str) -> None:
    """Mark the weights as nobody's version, end what is in flight and forget the prefixes of the old weights."""
    engine.set_weight_version(version, abort=True)
    engine.pause("abort")
    engine.flush_cache()


def _release(engine: EngineControl, version: str) -> None:
    engine.resume()
    engine.set_weight_version(version)


def _scramble(engine: EngineControl) -> None:
    """Keep a copy of the weights and make them random."""
    _suspend(engine, "checking")
    engine.check_weights("snapshot")
    engine.check_weights("reset_tensors")
    if not _compare(engine):  # random numbers passed as the weights
        raise EngineUnavailable(f"{engine.name} cannot compare weights: its check finds no difference at all.")


def _compare(engine: EngineControl) -> str:
    """The differing parameters, or "" when all are equal."""
    try:
        engine.check_weights("compare")
    except EngineRefused as refusal:
        names = re.findall(r"^name=(\S+)", str(refusal), flags=re.MULTILINE)
        return ", ".join(names) or str(refusal)
    return ""

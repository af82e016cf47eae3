"""Taking turns on shared devices: who holds memory while who works (--colocate, --offload-train, --offload-rollout).

Guarantee: after ``generate``, ``score``, ``train``, ``save`` or ``hand_over`` those who work next hold their memory and
all others have given up what would be in the way. Each asks the actors, which know what they hold, and may be repeated:
so it is right after a kill at any moment. Where nothing is shared nobody is asked.

=============  ==================  ===================================  =====================
turn           trainers            rollout engines                      judge's engines
=============  ==================  ===================================  =====================
``generate``   all away            weights and KV cache                 weights and KV cache
``score``      all away            as they are                          weights and KV cache
``train``      one there           all away                             all away
``hand_over``  the actor's there   weights, to be written; no KV cache  all away
``save``       one there           no KV cache                          all away
=============  ==================  ===================================  =====================

``save`` leaves the engines the weights that they have just got. Weights that a rollout engine gives up are gone, and
the engine says so by its version; the judge's are kept in host memory.

``generated`` is no turn: it only begins what ``train`` then finds done, beside rewards and advantages. The next turn,
whichever it is, waits for it.
"""

from concurrent.futures import ThreadPoolExecutor

from relax_core.engines.actor import PARTS
from relax_core.run.session import RunSession
from relax_core.training.roles import Role

WEIGHTS, CACHE = PARTS


def take_turns(run: RunSession) -> bool:
    """Whether anyone gives up memory in this run. A CPU's memory is the host's: there is nothing to give up. Where
    steps overlap, all of them work at the same time."""
    options = run.config.cluster
    wanted = bool(options.offload_train or options.offload_rollout) and not run.config.backend.fully_async
    return wanted and run.backend.device == "cuda"


def note(run: RunSession) -> None:
    """Tell the person who asked for turns where there are none."""
    options = run.config.cluster
    if (options.offload_train or options.offload_rollout) and run.backend.device != "cuda":
        what = "--colocate" if options.colocate else "--offload-train and --offload-rollout"
        run.progress.note(f"{what}: without a GPU nothing is freed; trainer and engines run beside each other")


def generate(run: RunSession) -> None:
    """Engines, and the judge, generate."""
    if not take_turns(run):
        return
    _leave(run)
    if run.config.cluster.offload_rollout:
        for engines in (run.known_engines, run.known_judge):
            if engines is not None:
                engines.resume(PARTS)


def generated(run: RunSession) -> None:
    """A step's responses are all there: the engines begin to give up the KV cache."""
    engines, options = run.known_engines, run.config
    if engines is None or run.mode != "whole" or not take_turns(run) or not options.cluster.offload_rollout:
        return
    if options.fault_tolerance.use_fault_tolerance:  # a check is not waited for, and a late one must find the cache
        return
    _settle(run)
    pool = ThreadPoolExecutor(1, thread_name_prefix="turns")
    run.giving = pool.submit(engines.release, (CACHE,))
    pool.shutdown(wait=False)


def score(run: RunSession) -> None:
    """The judge answers; in a run without one nothing has to change."""
    if run.judge is None or not take_turns(run):
        return
    _leave(run)
    if run.config.cluster.offload_rollout:
        run.judge.resume(PARTS)


def train(run: RunSession, role: Role = "actor") -> None:
    """A model computes."""
    if take_turns(run):
        _enter(run, role, (CACHE, WEIGHTS))


def save(run: RunSession, role: Role = "actor") -> None:
    """A model is written down."""
    if take_turns(run):
        _enter(run, role, (CACHE,))


def hand_over(run: RunSession, label: str) -> None:
    """The actor sends its weights to the engines. Nothing changes where all have them.

    Args:
        label: of the weights, see ``relax_core.weights.label``.
    """
    if not take_turns(run) or not run.engines.stale(label):
        return
    _enter(run, "actor", (CACHE,))
    if run.config.cluster.offload_rollout:
        run.engines.resume((WEIGHTS,))


def _settle(run: RunSession) -> None:
    """What was begun is done before anything else is."""
    if (giving := run.giving) is not None:
        run.giving = None
        giving.result()


def _leave(run: RunSession) -> None:
    _settle(run)
    if run.config.cluster.offload_train:
        for trainer in run.known_trainers.values():
            trainer.offload()


def _enter(run: RunSession, role: Role, freed: tuple[str, ...]) -> None:
    _settle(run)
    options = run.config.cluster
    if options.offload_rollout:
        if run.known_engines is not None:
            run.known_engines.release(freed)
        if run.known_judge is not None:
            run.known_judge.release(PARTS)
    if options.offload_train:
        for other, trainer in run.known_trainers.items():
            if other != role:
                trainer.offload()
        run.known_trainers[role].onload()

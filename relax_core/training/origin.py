"""Where weights are read from: a Hugging Face folder, or one iteration of a folder of checkpoints.

Guarantee: what an option names is found once and then has a fixed name (``Origin.path``), so that checkpoints which
appear later change nothing; a place without weights is an error that names the option. Needs neither torch nor
Megatron.
"""

from dataclasses import dataclass
from pathlib import Path

from data.errors import UserError
from data.files import FileStore
from relax_core.config.sections import RelaxConfig
from relax_core.training.checkpoint_index import complete_markers, newest_complete, read_marker
from relax_core.training.checkpoint_names import folder_name, iteration_of


@dataclass(frozen=True)
class Origin:
    """Where weights are.

    Attributes:
        url: a Hugging Face folder, or the folder that holds ``iter_0000012`` and the like.
        iteration: which of them; None: it is a Hugging Face folder.
    """

    url: str
    iteration: int | None = None

    @property
    def path(self) -> str:
        """The name under which ``find_origin`` finds the same weights again."""
        return self.url if self.iteration is None else f"{self.url.rstrip('/')}/{folder_name(self.iteration)}"


def actor_origin(config: RelaxConfig) -> Origin:
    """Where the actor's first weights are: --load, else --ref-load, else --hf-checkpoint.

    Raises:
        UserError: none of them is set, or the one that is holds no weights.
    """
    options = config.checkpoint
    if options.load:
        return find_origin("--load", options.load)
    if options.ref_load:
        return find_origin("--ref-load", options.ref_load, options.ref_ckpt_step)
    if options.hf_checkpoint is None:
        raise UserError("--hf-checkpoint is not set.", "Give the Hugging Face folder of the model.")
    return Origin(options.hf_checkpoint)


def critic_origin(config: RelaxConfig) -> Origin:
    """Where the critic's first weights are: --critic-load, else where the actor's are. They may lack a value head.

    Raises:
        UserError: as ``actor_origin``.
    """
    if config.checkpoint.critic_load:
        return find_origin("--critic-load", config.checkpoint.critic_load)
    return actor_origin(config)


def reference_origin(config: RelaxConfig) -> Origin:
    """Where the reference's weights are: --ref-load, else where the actor's are.

    Raises:
        UserError: as ``actor_origin``.
    """
    options = config.checkpoint
    if options.ref_load:
        return find_origin("--ref-load", options.ref_load, options.ref_ckpt_step)
    return actor_origin(config)


def teacher_origin(config: RelaxConfig) -> Origin:
    """Where the weights of the teacher in the trainer are: --opd-teacher-load.

    Raises:
        UserError: it is not set, or holds no weights.
    """
    options = config.opd
    if not options.opd_teacher_load:
        raise UserError("--opd-type megatron needs --opd-teacher-load, the teacher's weights.", "Give it.")
    return find_origin("--opd-teacher-load", options.opd_teacher_load, options.opd_teacher_ckpt_step)


def model_folder(origin: Origin) -> str | None:
    """The Hugging Face folder that tells the shape of the weights; None where it is gone, or was another machine's."""
    if origin.iteration is None:
        return origin.url
    marker, _ = read_marker(FileStore(origin.url), origin.iteration)
    folder = (marker or {}).get("hf_checkpoint")
    return folder if isinstance(folder, str) and (Path(folder) / "config.json").is_file() else None


def find_origin(option: str, place: str, step: int | None = None) -> Origin:
    """The weights that an option names.

    Args:
        option: its flag, for the error.
        place: a Hugging Face folder, a folder of checkpoints, or one checkpoint in it (``.../iter_0000012``).
        step: of a folder of checkpoints, which one; None: the newest.

    Raises:
        UserError: there are no complete weights there.
    """
    if (pinned := iteration_of(place)) is not None:
        place, step = place.rstrip("/").rsplit("/", 1)[0], pinned
    elif (Path(place) / "config.json").is_file():
        return Origin(place)
    if step is None:
        newest = newest_complete(place)
        if newest is None:
            raise UserError(
                f"{option} {place} holds neither a model (config.json) nor a complete checkpoint (iter_*).",
                "Give a Hugging Face folder or a checkpoint folder.",
            )
        return Origin(place, newest)
    store = FileStore(place)
    marker, problem = read_marker(store, step)
    if marker is None:
        complete = ", ".join(str(iteration) for iteration, _ in reversed(complete_markers(store)))
        raise UserError(
            f"{option} {place} holds no complete checkpoint of step {step}: {problem}.",
            f"Complete are: {complete or 'none'}.",
        )
    return Origin(place, step)

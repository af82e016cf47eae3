"""Rules of distillation from a teacher, and of the service that it shares an option with.

Guarantee: a teacher that could say nothing, for want of its server or its weights, is told before anything is
generated.
"""

from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import idle
from relax_core.config.rules.named import NAMING, is_part, named
from relax_core.config.values import Values

_CARRYING = ("custom_generate_function_path", "load_debug_rollout_data")
"""What may give samples that carry the teacher's log-probs already."""

_OPD = ("opd_type", "opd_kl_coef", "opd_teacher_load", "opd_teacher_ckpt_step")


def _on_server(v: Values) -> bool:
    """Whether a server is the teacher. Reads ``use_opd`` and ``opd_type``."""
    return bool(v.use_opd and v.opd_type == "sglang")


def _scores(v: Values) -> bool:
    """Whether a service is the reward of anything. Reads ``reward_mix`` and ``NAMING``."""
    return bool(list(named(v, "remote_rm")) or is_part(v, "remote_rm"))


RULES: tuple[Rule, ...] = (
    Rule(
        name="distillation-has-a-type",
        option="use_opd",
        reads=("use_opd", "opd_type"),
        broken=lambda v: v.use_opd and v.opd_type is None,
        message="needs --opd-type sglang or megatron: where the teacher's log-probs come from.",
    ),
    Rule(
        name="teacher-in-the-trainer-is-loaded",
        option="opd_type",
        reads=("use_opd", "opd_type", "opd_teacher_load"),
        broken=lambda v: v.use_opd and v.opd_type == "megatron" and v.opd_teacher_load is None,
        message="needs --opd-teacher-load, the teacher's weights.",
    ),
    Rule(
        name="teacher-on-a-server-is-not-loaded",
        option="opd_teacher_load",
        reads=("use_opd", "opd_type", "opd_teacher_load"),
        broken=lambda v: _on_server(v) and v.opd_teacher_load is not None,
        message="cannot be used with --opd-type sglang: the server at --rm-url has the teacher.",
        fix="Leave it out.",
    ),
    Rule(
        name="teacher-has-a-server",
        option="opd_type",
        reads=("use_opd", "opd_type", "rm_url", *_CARRYING),
        broken=lambda v: _on_server(v) and v.rm_url is None and not any(v[name] for name in _CARRYING),
        message="needs --rm-url, the address of the teacher's server.",
    ),
    Rule(
        name="service-is-asked",
        option="rm_url",
        reads=("rm_url", "use_opd", "opd_type", "reward_mix", *NAMING),
        broken=lambda v: (
            v.rm_url is not None
            and not _on_server(v)
            and not _scores(v)
            and (v.custom_rm_path is not None or v.rm_type is not None or v.use_opd)  # else rows may name it
        ),
        message="is asked by nothing: it is the service of --rm-type remote_rm, or the teacher of --opd-type sglang.",
        fix="Leave it out.",
        severity="warning",
    ),
    Rule(
        name="teacher-on-a-server-is-not-scaled",
        option="rollout_temperature",
        reads=("rollout_temperature", "use_opd", "opd_type"),
        broken=lambda v: _on_server(v) and v.rollout_temperature != 1,
        message="may be refused at the start: SGLang up to 0.5.23 scores the tokens of --opd-type sglang at temperature"
        " 1, whatever it is asked for, and student and teacher are compared at one temperature.",
        fix="Use 1, or --opd-type megatron.",
        severity="warning",
    ),
    Rule(
        name="one-service-one-address",
        option="rm_url",
        reads=("rm_url", "use_opd", "opd_type", "reward_mix", *NAMING),
        broken=lambda v: v.rm_url and _on_server(v) and _scores(v),
        message="cannot be both the service of --rm-type remote_rm and the teacher's server.",
    ),
    Rule(
        name="distillation-has-a-weight",
        option="opd_kl_coef",
        reads=("use_opd", "opd_kl_coef"),
        broken=lambda v: v.use_opd and v.opd_kl_coef == 0,
        message="leaves the teacher without influence.",
        severity="warning",
    ),
    idle(
        "distillation-is-on",
        _OPD,
        ("use_opd",),
        lambda v: not v.use_opd,
        "has no effect without --use-opd.",
    ),
)

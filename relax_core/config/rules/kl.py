"""Rules of the KL to a reference model.

Guarantee: a weight without its KL, a KL without its weight and a KL that counts twice are refused; a reference that
nobody reads is told.
"""

from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import KL, has_kl, idle, is_rl

RULES: tuple[Rule, ...] = (
    Rule(
        name="kl-weight-needs-the-loss",
        option="kl_loss_coef",
        reads=("kl_loss_coef", "use_kl_loss"),
        broken=lambda v: v.kl_loss_coef and not v.use_kl_loss,
        message="has no effect without --use-kl-loss.",
        fix="Add it, or leave this out.",
    ),
    Rule(
        name="kl-loss-needs-a-weight",
        option="use_kl_loss",
        reads=("use_kl_loss", "kl_loss_coef"),
        broken=lambda v: v.use_kl_loss and not v.kl_loss_coef and not v.is_given("kl_loss_coef"),
        message="needs --kl-loss-coef, the weight of the KL.",
        fix="A weight of 0 only measures the KL.",
        shows=False,
    ),
    Rule(
        name="unbiased-kl-needs-the-loss",
        option="use_unbiased_kl",
        reads=("use_unbiased_kl", "use_kl_loss"),
        broken=lambda v: v.use_unbiased_kl and not v.use_kl_loss,
        message="has no effect without --use-kl-loss.",
    ),
    Rule(
        name="kl-in-one-place",
        option="kl_coef",
        reads=("kl_coef", "kl_loss_coef"),
        broken=lambda v: v.kl_coef != 0 and v.kl_loss_coef != 0,
        message="excludes --kl-loss-coef {kl_loss_coef}: a KL is part of the rewards or of the loss.",
        fix="Set one of them to 0.",
    ),
    idle("kl-type-needs-kl", ("kl_loss_type",), KL, lambda v: not has_kl(v), "has no effect without a KL."),
    Rule(
        name="reference-is-read-for-kl",
        option="ref_load",
        reads=("ref_load", "load", "loss_type", *KL),
        # without --load of its own the actor starts there
        broken=lambda v: (
            v.ref_load is not None
            and v.load is not None
            and not v.load.startswith(v.ref_load)
            and is_rl(v)
            and not has_kl(v)
        ),
        message="is not read: the actor starts from --load, and without --use-kl-loss or --kl-coef nothing is compared"
        " with a reference.",
        fix="Leave it out, or add a KL.",
        severity="warning",
    ),
    Rule(
        name="reference-where-the-actor-starts",
        option="load",
        reads=("load", "ref_load", "loss_type", *KL),
        broken=lambda v: v.load is not None and v.ref_load is None and is_rl(v) and has_kl(v),
        message="is the reference of the KL too, since no --ref-load is given.",
        fix="Give --ref-load to compare with other weights.",
        severity="warning",
    ),
    idle(
        "reference-updates-need-kl",
        ("ref_update_interval",),
        KL,
        lambda v: not has_kl(v),
        "has no effect without --use-kl-loss or --kl-coef: there is no reference.",
        "Leave it out.",
    ),
)

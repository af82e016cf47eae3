"""The policy's, the critic's and the supervised objective in plain loops over Python floats, with their derivatives.

Guarantee: written from the papers, token by token, and independent of ``relax_core.algorithms``: no tensor, no packing,
no shared helper. Exact for log-ratios below 20 nats, from where on the library goes on linearly.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

Row = list[dict[str, float]]
"""The tokens of a sample: ``new``, ``entropy``, ``old``, ``ref``, ``rollout``, ``train``, ``advantage``, ``mask``."""


class Plain(NamedTuple):
    """Loss, its derivative by every token's log-probability and entropy (0 where masked), and the metrics."""

    loss: float
    by_log_prob: list[float]
    by_entropy: list[float]
    metrics: dict[str, float]


def token_loss(estimator: str, new: float, old: float, a: float, mean: float, options: Any) -> tuple[float, ...]:
    """Loss of a trained token, its derivative by what its ratio is made of, and whether it counts as clipped.

    PPO (2017) eq. 7, DAPO (2025) eq. 10, dual clip (Ye et al. 2020) eq. 5; GSPO (2025) eq. 5 and 7, where the ratio is
    made of the sample's ``mean`` log-ratio; SAPO (2025); CISPO (2025) eq. 4 and 5, bounded on the surrogate's side;
    REINFORCE (1992).
    """
    low = options.eps_clip
    high = low if options.eps_clip_high is None else options.eps_clip_high
    ratio = math.exp(mean if estimator == "gspo" else new - old)
    if estimator == "rloo":
        return -a * new, -a, False
    if estimator == "cispo":
        weight = min(ratio, 1 + high) if a >= 0 else max(ratio, 1 - low)
        return -weight * a * new, -weight * a, weight != ratio
    if estimator == "sapo":
        tau = options.sapo_tau_pos if a > 0 else options.sapo_tau_neg
        p = 1 / (1 + math.exp(min(-tau * (ratio - 1), 700)))
        return -4 / tau * p * a, -4 * p * (1 - p) * ratio * a, 4 * p * (1 - p) < 0.9
    loss = slope = -ratio * a
    clipped = -min(max(ratio, 1 - low), 1 + high) * a > loss
    if clipped:
        loss, slope = -min(max(ratio, 1 - low), 1 + high) * a, 0.0
    if options.eps_clip_c is not None and a < 0 and loss > -options.eps_clip_c * a:
        loss, slope = -options.eps_clip_c * a, 0.0
    return loss, slope, clipped


def token_kl(new: float, ref: float, old: float, kind: str, unbiased: bool) -> tuple[float, float]:
    """Schulman (2020): the estimate and its derivative by ``new``; the clamp of low_var_kl comes last."""
    d = new - ref
    value, slope = {"k1": (d, 1.0), "k2": (d * d / 2, d)}.get(kind, (math.expm1(-d) + d, -math.expm1(-d)))
    if unbiased:
        ratio = math.exp(new - old)
        value, slope = ratio * value, ratio * (value + slope)
    if kind == "low_var_kl" and abs(value) > 10:
        value, slope = math.copysign(10, value), 0.0
    return value, slope


def _weights(counts: Sequence[int], per_token: bool) -> list[float]:
    """Weight of each counted token of each sample."""
    if per_token:
        return [1 / max(sum(counts), 1)] * len(counts)
    return [1 / (max(count, 1) * len(counts)) for count in counts]


def plain_policy(
    rows: Sequence[Row], estimator: str, options: Any, band: tuple[float, float] | None = None, kl: bool = True
) -> Plain:
    """The order of terms: policy loss, OPSM, importance correction, mean, minus entropy, plus KL.

    Args:
        rows: all samples of an optimiser step.
        estimator: its name.
        options: with the names of ``LossOptions``.
        band: reject tokens whose weight trainer / engine is outside, instead of the truncation.
        kl: there is a reference.
    """
    trained = [[t for t, token in enumerate(row) if token["mask"]] for row in rows]
    weights = _weights([len(own) for own in trained], options.calculate_per_token_loss)
    raw = [[math.exp(token["train"] - token["rollout"]) if token["mask"] else 0.0 for token in row] for row in rows]
    keeps = [[t for t in own if band is None or band[0] <= raw[i][t] <= band[1]] for i, own in enumerate(trained)]
    pg_weights = _weights([len(own) for own in keeps], options.calculate_per_token_loss)
    m = dict.fromkeys(("pg_loss", "pg_clipfrac", "ppo_kl", "advantage_nonzero_frac", "entropy_loss"), 0.0)
    m |= dict.fromkeys(("train_rollout_logprob_abs_diff", "train_rollout_prob_abs_diff"), 0.0)
    m |= {f"{name}_max": 0.0 for name in ("train_rollout_logprob_abs_diff", "train_rollout_prob_abs_diff")}
    corrects = options.use_tis or band is not None
    m |= {"kl_loss": 0.0} if kl else {}
    m |= {"opsm_clipfrac": 0.0} if options.use_opsm else {}
    names = ("ois", "mismatch_kl", "mismatch_k3_kl", "tis", "tis_clipfrac", "tis_abs")
    m |= dict.fromkeys(names, 0.0) if corrects else {}
    importance = []
    by_log_prob, by_entropy = [], []
    for i, row in enumerate(rows):
        w, own = weights[i], trained[i]
        d_new, d_entropy = [0.0] * len(row), [0.0] * len(row)
        mean = sum(row[t]["new"] - row[t]["old"] for t in own) / max(len(own), 1)
        for t in own:
            new, old, a = row[t]["new"], row[t]["old"], row[t]["advantage"]
            loss, slope, clipped = token_loss(estimator, new, old, a, mean, options)
            log_ratio = mean if estimator == "gspo" else new - old
            m["pg_clipfrac"] += w * clipped
            m["ppo_kl"] -= w * log_ratio
            m["advantage_nonzero_frac"] += w * (a != 0)
            if options.use_opsm:
                dropped = a < 0 and -mean > options.opsm_delta
                m["opsm_clipfrac"] += w * dropped
                loss, slope = (0.0, 0.0) if dropped else (loss, slope)
            factor = 1.0
            if corrects:
                log_weight = row[t]["train"] - row[t]["rollout"]
                if band is None:
                    factor = min(max(raw[i][t], options.tis_clip_low), options.tis_clip)
                    m["tis_clipfrac"] += w * (factor != raw[i][t])
                else:
                    factor = float(t in keeps[i])
                    m["tis_clipfrac"] += w * (1 - factor)
                m["ois"] += w * math.exp(log_ratio)
                m["mismatch_kl"] += w * log_weight
                m["mismatch_k3_kl"] += w * (raw[i][t] - 1 - log_weight)
                m["tis"] += w * raw[i][t]
                m["tis_abs"] += w * abs(raw[i][t] - 1)
            if t in keeps[i]:
                m["pg_loss"] += pg_weights[i] * factor * loss
                part = pg_weights[i] * factor * slope
                if estimator == "gspo":
                    for s in own:
                        d_new[s] += part / len(own)
                else:
                    d_new[t] += part
            m["entropy_loss"] += w * row[t]["entropy"]
            d_entropy[t] -= w * options.entropy_coef
            if kl:
                value, slope = token_kl(new, row[t]["ref"], old, options.kl_loss_type, options.use_unbiased_kl)
                m["kl_loss"] += w * value
                d_new[t] += w * options.kl_loss_coef * slope
            train, rollout = row[t]["train"], row[t]["rollout"]
            gaps = {"logprob": abs(train - rollout), "prob": abs(math.exp(train) - math.exp(rollout))}
            for kind, gap in gaps.items():
                name = f"train_rollout_{kind}_abs_diff"
                m[name] += w * gap
                m[f"{name}_max"] = max(m[f"{name}_max"], gap)
            importance.append(math.exp(new - rollout))
        by_log_prob += d_new
        by_entropy += d_entropy
    squares = sum(x * x for x in importance)
    m["importance_ess"] = sum(importance) ** 2 / (len(importance) * squares) if importance else math.nan
    m["loss"] = m["pg_loss"] - options.entropy_coef * m["entropy_loss"]
    m["loss"] += options.kl_loss_coef * m["kl_loss"] if kl else 0.0
    return Plain(m["loss"], by_log_prob, by_entropy, m)


def plain_value(rows: Sequence[Row], value_clip: float, per_token: bool) -> Plain:
    """PPO (2017), L^VF of eq. 9 with the clip of its authors' code; tokens have ``new`` (V), ``old``, ``ref`` (R)."""
    trained = [[token for token in row if token["mask"]] for row in rows]
    weights = _weights([len(own) for own in trained], per_token)
    m = dict.fromkeys(("loss", "value_loss", "value_clipfrac", "value_mean", "return_mean"), 0.0)
    slopes = []
    for w, row in zip(weights, rows, strict=True):
        for token in row:
            if not token["mask"]:
                slopes.append(0.0)
                continue
            v, old, r = token["new"], token["old"], token["ref"]
            bounded = min(max(v, old - value_clip), old + value_clip)
            loss, slope = (v - r) ** 2, 2 * (v - r)
            if (bounded - r) ** 2 > loss:
                loss, slope = (bounded - r) ** 2, 0.0 if bounded != v else slope
            m["loss"] += w * loss
            m["value_clipfrac"] += w * (abs(v - old) > value_clip)
            m["value_mean"] += w * v
            m["return_mean"] += w * r
            slopes.append(w * slope)
    m["value_loss"] = m["loss"]
    return Plain(m["loss"], slopes, [0.0] * len(slopes), m)


def plain_supervised(rows: Sequence[Row], per_token: bool) -> Plain:
    """Mean negative log-likelihood of the learned tokens."""
    trained = [[token for token in row if token["mask"]] for row in rows]
    weights = _weights([len(own) for own in trained], per_token)
    m, slopes = {"loss": 0.0, "entropy_loss": 0.0}, []
    for w, row in zip(weights, rows, strict=True):
        for token in row:
            slopes.append(-w if token["mask"] else 0.0)
            if token["mask"]:
                m["loss"] -= w * token["new"]
                m["entropy_loss"] += w * token["entropy"]
    learned = [token["new"] for own in trained for token in own]
    if learned:
        m["ppl"] = math.exp(-sum(learned) / len(learned))
    return Plain(m["loss"], slopes, [0.0] * len(slopes), m)


def plain_advantages(
    rows: Sequence[Row],
    rewards: Sequence[float],
    estimator: str,
    *,
    gamma: float,
    lambd: float,
    kl_coef: float,
    kl_kind: str,
    opd_coef: float | None,
    normalize: bool,
) -> tuple[list[float], list[float]]:
    """Advantages and returns of every token of samples with these normalised rewards (NaN: no score).

    DeepSeekMath (2024) 4.1.2 (a sample's reward at all its tokens); GAE (2016) eq. 16 and REINFORCE++ (2025) along the
    trained tokens; less ``opd_coef`` times student - teacher (MiniLLM, 2024); then standardised over trained tokens.

    Args:
        rows: tokens with ``mask``, ``value``, ``old``, ``ref``, ``teacher``.
    """
    advantages: list[list[float]] = []
    returns: list[list[float]] = []
    for row, reward in zip(rows, rewards, strict=True):
        scored = reward == reward
        trained = [t for t, token in enumerate(row) if token["mask"] and scored]
        a, r = [0.0] * len(row), [0.0] * len(row)
        following_a = following_r = following_v = 0.0
        for t in reversed(range(len(row))):
            token = row[t]
            if estimator not in ("ppo", "reinforce_plus_plus"):
                everywhere = estimator != "reinforce_plus_plus_baseline"
                a[t] = r[t] = reward if scored and (everywhere or token["mask"]) else 0.0
            elif t in trained:
                rho = reward if t == trained[-1] else 0.0
                if kl_coef:
                    rho -= kl_coef * token_kl(token["old"], token["ref"], token["old"], kl_kind, False)[0]
                if estimator == "ppo":
                    delta = rho + gamma * following_v - token["value"]
                    following_a = delta + gamma * lambd * following_a
                    following_v = token["value"]
                    a[t], r[t] = following_a, following_a + token["value"]
                else:
                    following_r = rho + gamma * following_r
                    a[t] = r[t] = following_r
        if opd_coef is not None:
            for t, token in enumerate(row):
                a[t] -= opd_coef * (token["old"] - token["teacher"]) if token["mask"] else 0.0
        advantages.append(a)
        returns.append(r)
    if normalize:
        kept = [
            x for a, row in zip(advantages, rows, strict=True) for x, token in zip(a, row, strict=True) if token["mask"]
        ]
        mean = sum(kept) / max(len(kept), 1)
        squares = sum((x - mean) ** 2 for x in kept)
        if estimator.startswith("reinforce_plus_plus"):
            scale = math.sqrt(max(squares / max(len(kept), 1), 1e-8))
        else:
            scale = math.sqrt(squares / max(len(kept) - 1, 1) + 1e-8)
        advantages = [
            [(x - mean) / scale if token["mask"] else 0.0 for x, token in zip(a, row, strict=True)]
            for a, row in zip(advantages, rows, strict=True)
        ]
    return [x for a in advantages for x in a], [x for r in returns for x in r]

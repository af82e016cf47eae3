"""Unicode as LaTeX: π is ``\\pi``, ² is ``^{2}``, a full-width digit is a digit.

Guarantee: ASCII text comes back as it is, but for control characters, which become spaces; time is linear in the text.
"""

import re
import unicodedata

_COMMANDS = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "•": r"\cdot ", "∗": "*", "÷": r"\div ",
    "∕": "/", "⁄": "/", "√": r"\surd ", "∛": r"\sqrt[3]", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ",
    "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ",
    "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "…": r"\ldots ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "∣": "|", "。": ".",
    "、": ",", "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "﹣": "-", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}", "ℂ": r"\mathbb{C}", "∖": r"\setminus ",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ϵ": "epsilon", "ζ": "zeta", "η": "eta",
    "θ": "theta", "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi", "π": "pi",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma",
    "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_NOTHING = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()", strict=True))
_RAISED = re.compile(f"[{''.join(_SUPER)}]+")
_LOWERED = re.compile(f"[{''.join(_SUB)}]+")
_CONTROL = dict.fromkeys(range(32), " ") | {127: " ", 0x08: r"\b", 0x0C: r"\f"}  # "\boxed", "\frac" read as JSON


def as_latex(text: str) -> str:
    """The text with LaTeX, or plain ASCII, in place of Unicode."""
    if not text.isprintable():
        text = text.translate(_CONTROL)
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: f"^{{{''.join(map(_SUPER.__getitem__, match.group()))}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{''.join(map(_SUB.__getitem__, match.group()))}}}", text)
    return "".join(character if character.isascii() else _ascii(character) for character in text)


def _ascii(character: str) -> str:
    if (command := _COMMANDS.get(character)) is not None:
        return command
    if (letter := _GREEK.get(character)) is not None:
        return f"\\{letter} "
    if character in _NOTHING:
        return ""
    if character.isspace():
        return " "
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", character)
    if plain in _GREEK:  # bold and italic letters of the mathematical alphabets
        return f"\\{_GREEK[plain]} "
    top, slash, bottom = plain.partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}" if slash else plain

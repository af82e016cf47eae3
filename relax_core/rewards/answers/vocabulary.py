"""Commands of LaTeX, and words, by what they mean in an answer.

Guarantee: plain tables. A command that is in none of them, and not in the readers' own grammar, is not read.
"""


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


WRAPPERS = words(
    r"\text \mbox \hbox \textbf \textit \textrm \textnormal \textsf \texttt \emph \mathrm \operatorname \mathop \rm"
)
"""Commands whose argument is words."""

STYLES = words(
    r"\mathbf \mathit \mathsf \mathtt \boldsymbol \bm \mathcal \boxed \fbox \framebox \ensuremath \underline \bf \it"
)
"""Commands that only change how their argument looks."""

SPACES = words(
    r"\left \right \middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \displaystyle \textstyle"
    r" \scriptstyle \limits \nolimits \quad \qquad \enspace \thinspace \hfill \; \: \, \! \> \( \) \[ \]"
) | {"\\ ", "\\\n"}
"""Commands without a meaning."""

FUNCTIONS = words(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot asin acos atan ln log lg exp sqrt"
)
"""Functions; their names are the same with a backslash."""

SYMBOLS = words(
    r"\alpha \beta \gamma \delta \epsilon \zeta \eta \theta \iota \kappa \lambda \mu \nu \xi \rho \sigma \tau \upsilon"
    r" \phi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar \pi"
    r" \infty"
)

ACCENTS = words(r"\overline \vec \hat \bar \tilde \overrightarrow \widehat \dot")
"""Commands that make a symbol of their argument."""

MATRICES = words("matrix pmatrix bmatrix Bmatrix smallmatrix array")
"""Environments."""

NAMES = {"pi": r"\pi", "infinity": r"\infty", "inf": r"\infty", "oo": r"\infty", "theta": r"\theta"}
"""Words that stand for a command."""

WORDS_OF_TWO = words("no on is am pm at if an of to by as be")
"""Words that may also be products of two letters."""

SAME = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\leq": r"\le", r"\leqslant": r"\le",
    r"\geq": r"\ge", r"\geqslant": r"\ge", r"\neq": r"\ne", r"\lt": "<", r"\gt": ">", r"\lbrace": r"\{",
    r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\lparen": "(", r"\rparen": ")", r"\lvert": "|",
    r"\rvert": "|", r"\vert": "|", r"\mid": "|", r"\%": "%", r"\ast": "*", r"\varnothing": r"\emptyset",
    r"\degree": r"\circ", r"\bigcup": r"\cup", r"\colon": ":", r"\varphi": r"\phi", r"\varepsilon": r"\epsilon",
    r"\vartheta": r"\theta", r"\dbinom": r"\binom", r"\tbinom": r"\binom", r"\imath": "i", r"\i": "i", r"\e": "e",
    r"\infin": r"\infty", r"\land": "and", r"\lor": "or", r"\wedge": "and", r"\vee": "or", "<=": r"\le", ">=": r"\ge",
    "!=": r"\ne", "**": "^", "==": "=", ":=": "=", r"\coloneqq": "=", r"\slash": "/", r"\backslash": r"\setminus",
    r"\$": "$", r"\euro": "€", r"\pounds": "£",
}  # fmt: skip
"""Other writings of a token."""

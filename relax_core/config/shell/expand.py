"""From words to values: quotes removed, parameters and arithmetic expanded, unquoted results split.

Guarantee: the same words as bash makes, where all that they need is known; a part that is not known stays as it is
written, is never split, and has a doubt.
"""

from typing import Protocol

from relax_core.config.shell.arithmetic import UncountableError, calculate
from relax_core.config.shell.fields import Fields
from relax_core.config.shell.parameters import expand_parameter
from relax_core.config.shell.patterns import expand_braces, regex_of
from relax_core.config.shell.syntax import Arithmetic, Opaque, Parameter, Part, Quoted, Substitution, Text, Word
from relax_core.config.shell.values import LIMIT, Doubt, State, Value, concatenated, merged

_DEEPEST = 20


class Host(Protocol):
    """What the expansion of words needs of the one who runs the commands."""

    state: State
    file: str
    """The file that is read, as notes name it; empty for the script itself."""
    script: Value
    """The path of that file, as ``BASH_SOURCE`` has it."""
    main: Value
    """The path of the script itself, as ``$0`` has it."""

    def capture(self, substitution: Substitution) -> Value:
        """The output of a command substitution, without the new lines at its end."""


class Expander:
    """Expands words with the state of a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._depth = 0
        self._vanished = False
        self._counted: list[Doubt] = []

    def doubt(self, line: int, text: str, blocks: bool = False, mark: str = "") -> Doubt:
        """A doubt about what stands in a line of the present file."""
        return Doubt(line, text, blocks, mark, self.host.file)

    def unknown(self, source: str, line: int, text: str = "") -> Value:
        """A value that is not known: what is written for it, and why."""
        return Value(source, (self.doubt(line, text or f"`{short(source)}` cannot be worked out", True, source),))

    def fields(self, word: Word) -> list[Value]:
        """The words that a word becomes: none, one or several."""
        found: list[Value] = []
        for one in expand_braces(word):
            fields = Fields(self._ifs())
            self._parts(one.parts, fields)
            values = fields.values()
            for value, (pieces, _) in zip(values, fields.pieces(), strict=False):
                found.append(self._about_files(value, pieces, word.line))
            found.extend(values[len(fields.pieces()) :])
        return found

    def _about_files(self, value: Value, pieces: list[tuple[str, bool]], line: int) -> Value:
        """A doubt where a word is a pattern of file names."""
        text = "".join(text for text, quoted in pieces if not quoted)
        if value.text.startswith("~/") and text.startswith("~"):
            return value.doubting((self.doubt(line, f"`~` in `{value.text}` is known only where the script runs"),))
        if ("*" in text or "?" in text) and "/" in value.text and not value.blocks:
            return value.doubting((self.doubt(line, f"`{value.text}` is a pattern of files, which is not expanded"),))
        return value

    def joined(self, word: Word) -> Value:
        """The one value of a word where nothing is split: in an assignment, in ``[[ ]]``."""
        fields = Fields(None)
        self._parts(word.parts, fields)
        value = fields.values()[0]
        if len(value.text) > LIMIT:
            return self.unknown(value.text[:50], word.line, "a text becomes too long")
        return value

    def regex(self, word: Word, extended: bool = False) -> tuple[str, tuple[Doubt, ...]]:
        """The regular expression of a pattern, or of the right side of ``=~``, and the doubts about it."""
        fields = Fields(None)
        self._parts(word.parts, fields)
        pieces, doubts = fields.pieces()[0]
        if extended:
            return "".join(regex_of([(text, True)]) if quoted else text for text, quoted in pieces), doubts
        return regex_of(pieces), doubts

    def replacement(self, word: Word) -> Value:
        """What ``${name/pattern/word}`` puts in; an unquoted ``&`` there is not the same to bash 5.1 and 5.2."""
        fields = Fields(None)
        self._parts(word.parts, fields)
        pieces, doubts = fields.pieces()[0]
        text = "".join(text for text, _ in pieces)
        if any("&" in text and not quoted for text, quoted in pieces):
            return self.unknown(text, word.line, "what `&` means in a replacement depends on the version of bash")
        return Value(text, doubts)

    def number(self, word: Word) -> int:
        """The value of an arithmetic expression.

        Raises:
            UncountableError: there is none, or it is not known.
        """
        return int(self.calculated(word).text)

    def calculated(self, word: Word) -> Value:
        """The value of an arithmetic expression with its doubts.

        Raises:
            UncountableError: there is none, or it is not known.
        """
        text = self.joined(word)
        if text.blocks:
            raise UncountableError("part of the expression is not known")
        outer, self._counted = self._counted, []
        try:
            number = calculate(text.text, lambda name: self._integer(name, word.line), self._store)
            return Value(str(number), merged(text.doubts, self._counted))
        finally:
            self._counted = outer

    def _integer(self, name: str, line: int) -> int:
        variable = self.host.state.variables.get(name)
        if variable is None:
            self._counted.append(self.doubt(line, f"`{name}` is not set and counts as 0"))
            return 0
        value = variable.value if isinstance(variable.value, Value) else variable.value.items.get(0, Value(""))
        self._depth += 1
        try:
            if value.blocks or self._depth > _DEEPEST:
                raise UncountableError(f"`{name}` is not known")
            self._counted.extend(value.doubts)
            return calculate(value.text, lambda inner: self._integer(inner, line), self._store)
        finally:
            self._depth -= 1

    def _store(self, name: str, number: int) -> None:
        self.host.state.assign(name, Value(str(number)))

    def _ifs(self) -> str:
        variable = self.host.state.variables.get("IFS")
        return variable.value.text if variable and isinstance(variable.value, Value) else " \t\n"

    def _parts(self, parts: tuple[Part, ...], fields: Fields, quoted: bool = False, inner: bool = False) -> None:
        """Add parts to fields; ``inner`` ones are those of a default, whose plain text is split too."""
        for part in parts:
            if isinstance(part, Text):
                if inner and not part.quoted and not quoted:
                    fields.split(Value(part.text))
                else:
                    fields.add(part.text, quoted or part.quoted)
            elif isinstance(part, Quoted):
                if not part.parts:
                    fields.add("", True)
                empty, self._vanished = fields.empty, False
                self._parts(part.parts, fields, quoted=True)
                if empty and self._vanished:  # bash: `"$empty${none[@]}"` is no word
                    fields.forget()
            elif isinstance(part, Parameter):
                self._parameter(part, fields, quoted)
            else:
                self._single(self._value(part), fields, quoted)

    def _value(self, part: Substitution | Arithmetic | Opaque) -> Value:
        if isinstance(part, Substitution):
            return self.host.capture(part)
        if isinstance(part, Opaque):
            return self.unknown(part.source, part.line)
        try:
            return self.calculated(part.expression)
        except UncountableError:
            return self.unknown(part.source, part.line)

    def _single(self, value: Value, fields: Fields, quoted: bool) -> None:
        if quoted:
            fields.add(value.text, True, value.doubts)
        else:
            fields.split(value)

    def _parameter(self, part: Parameter, fields: Fields, quoted: bool) -> None:
        found = expand_parameter(part, self)
        fields.doubt(found.doubts)
        if found.word is not None:
            if quoted and not found.word.parts:
                fields.add("", True)
            self._parts(found.word.parts, fields, quoted, inner=True)
            return
        if not found.several:
            for value in found.values or [Value("")]:
                self._single(value, fields, quoted)
            return
        present, ifs = [value for value in found.values if value.present], self._ifs()
        if part.every == "*" and (quoted or fields.whole):
            fields.add("", True)
            self._single(concatenated(found.values, ifs[:1]), fields, quoted)
            return
        self._vanished |= not present
        if not quoted and not fields.whole and ifs[:1].strip():  # bash joins the elements, then splits
            self._single(concatenated(found.values, ifs[:1]), fields, quoted)
            return
        for number, value in enumerate(present):
            if number:
                fields.cut()
            self._single(value, fields, quoted)
        fields.doubt(doubt for value in found.values if not value.present for doubt in value.doubts)


def short(source: str) -> str:
    """Source text on one line, cut where it is long."""
    line = " ".join(source.split())
    return line if len(line) <= 60 else f"{line[:57]}..."

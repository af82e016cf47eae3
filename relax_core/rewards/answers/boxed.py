"""The last box of a response: ``\\boxed{...}``, ``\\fbox{...}``, ``\\framebox{...}`` or ``\\boxed 7``.

Guarantee: the last box counts, whole, with any depth of braces, in time linear in the text; a last box that was never
closed hides those before it; an empty one, and a mention without content, are no boxes.
"""

import re
from dataclasses import replace

from relax_core.rewards.answer_text import answer_text, opens_reasoning
from relax_core.rewards.answers.thinking import OPEN
from relax_core.rewards.types import RewardInput

# Backslashes may be doubled; a backspace is what a careless JSON writer makes of the \b of \boxed.
_BOX = r"(?:\\{1,2}|\x08(?=oxed))(?:boxed|oxed|fbox|framebox)(?![A-Za-z])"
_START = re.compile(_BOX)
# What matters once a box was seen: boxes, escaped characters (\{ is no brace, \\ hides no brace), braces.
_STEP = re.compile(rf"(?P<box>{_BOX}(?P<brace>\s*\{{)?)|\\.|[{{}}]", re.DOTALL)
# Without braces: a number, a choice, or a command with its arguments.
_BARE = re.compile(
    r"[ \t]*([-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?![A-Za-z])|\\[A-Za-z]+(?:\{[^{}]*\}|\d)*|[A-H](?![A-Za-z]))"
)

# What may stand between boxes side by side.
_BETWEEN = re.compile(
    r"(?:[\s$,;&]|\\[,;:! ()\[\]]|\\q?quad(?![a-z])|\\(?:text|mathrm|mbox)\s*\{\s*(?:and|or)\s*\}|and|or)*"
)


def last_box(text: str) -> str | None:
    """Content of the last box of a text, without spaces round it; None without a box, or when the last is not closed.

    A box within a box is part of the outer one.
    """
    boxes = _boxes(text)
    return boxes[-1][2] if boxes else None


def last_boxes(text: str) -> str | None:
    """Contents of the last boxes, with commas, where several stand side by side as in ``\\boxed{1}, \\boxed{2}``.

    None where only one does.
    """
    boxes = _boxes(text)
    first = len(boxes) - 1
    while first > 0 and _BETWEEN.fullmatch(text, boxes[first - 1][1], boxes[first][0]):
        first -= 1
    return ", ".join(content for _, _, content in boxes[first:]) if 0 <= first < len(boxes) - 1 else None


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Begin, end, content of the outermost boxes that are closed and not empty; none where the last is not closed."""
    first = _START.search(text)
    if first is None:
        return []
    found: list[tuple[int, int, str]] = []
    open_boxes: list[tuple[int, int, int]] = []  # where it begins, where its content begins, depth outside of it
    depth = 0
    for step in _STEP.finditer(text, first.start()):
        mark = step.group()
        if step["box"] is not None:
            if step["brace"]:
                open_boxes.append((step.start(), step.end(), depth))
                depth += 1
            elif not open_boxes and (bare := _BARE.match(text, step.end())):
                found.append((step.start(), bare.end(), bare[1].rstrip(",")))
        elif mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if open_boxes and depth <= open_boxes[-1][2]:
                start, inside, _ = open_boxes.pop()
                content = text[inside : step.start()].strip()
                if content:
                    while found and found[-1][0] > start:
                        found.pop()  # within this one
                    found.append((start, step.end(), content))
    if open_boxes and (not found or found[-1][0] < open_boxes[0][0]):
        return []  # the last box was begun and not finished
    return found


def boxed(sample: RewardInput) -> RewardInput:
    """The sample with the content of the last box of its answer as response: what ``boxed_`` before a name does.

    Without a box the response is empty. A prompt loses the ``<think>`` at its end: the content stands after thinking.
    """
    prompt = sample.prompt
    if opens_reasoning(prompt):
        prompt = prompt.rstrip().removesuffix(OPEN)
    return replace(sample, prompt=prompt, response=last_box(answer_text(sample)) or "")

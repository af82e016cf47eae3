"""The part of a response that is its answer, not its reasoning.

Guarantee: what stands before the last closing marker, or in a block that was never closed, is no answer; a response
without markers is all answer. Linear in the response.
"""

OPEN, CLOSE = "<think>", "</think>"


def final_part(response: str) -> str:
    """The text after the last ``</think>``, up to an opening ``<think>`` that nothing closes.

    A model that does not think writes no marker: its whole response counts. So does that of a model whose prompt ends
    with ``<think>``, as long as the closing marker is missing: nothing tells such a response from the other kind.
    """
    _, found, after = response.rpartition(CLOSE)
    part = after if found else response
    return part.partition(OPEN)[0]

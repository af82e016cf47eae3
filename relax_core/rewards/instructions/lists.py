"""Lists of English words that instructions ask for.

Guarantee: plain data, in small letters but for the names.
"""

from relax_core.rewards.instructions.text import word_set

CONJUNCTIONS = word_set("for and nor but or yet so")
"""The coordinating conjunctions."""

PERSON_NAMES = word_set(
    """Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin
    Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan
    Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph
    Claire Ryan Stella Jonathan"""
)
"""The names that count:person_names lists in its text."""

PRONOUNS = word_set(
    """i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves this that these those who whom whose which what
    whoever whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing
    somebody someone something each either neither both all some any none"""
)
"""Personal, possessive, reflexive, demonstrative, interrogative, relative and indefinite pronouns."""

STOP_WORDS = PRONOUNS - word_set(
    """anybody anyone anything everybody everyone everything nobody nothing somebody someone something whoever whomever
    whatever whichever none either neither"""
) | word_set(
    """a an the am is are was were be been being have has had having do does did doing can will just should now and but
    if or because as until while of at by for with about against between into through during before after above
    below to from up down in out on off over under again further then once here there when where why how few
    more most other such no nor not only own same so than too very s t d ll m o re ve y don isn aren wasn weren
    hasn haven hadn doesn didn won wouldn shouldn couldn mustn needn"""
)
"""Words that carry grammar, with the pieces of shortened ones."""

MINOR_WORDS = word_set(
    """a an the and but or nor for so yet as at by in of off on per to up via with from into onto over than vs"""
)
"""Words that titles may leave small."""

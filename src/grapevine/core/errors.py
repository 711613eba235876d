"""The one exception that users see: a sentence with the value, the place and the way out."""


class Mistake(ValueError):
    """Something that the user can correct. The command prints the sentence and exits with `code`, without a traceback."""

    code = 2


class Later(Mistake):
    """Nothing is wrong with the settings: the same command may work later, when others are there again (EX_TEMPFAIL of
    sysexits.h)."""

    code = 75

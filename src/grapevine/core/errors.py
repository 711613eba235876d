"""The one exception that users see: a sentence with the value, the place and the way out."""


class Mistake(ValueError):
    """Something the user can put right. The command prints the sentence and exits with 2, without a traceback."""

"""How names of strangers are printed: nothing of them begins a line or steers a terminal."""


def printable(text: str) -> str:
    r"""The text on one line, escapes in the place of what is no visible character or blank.

    Names in model files may have any: new lines and tabs, which would look like more output;
    control characters, which steer a terminal; what turns the direction of text.

    Args:
        text: of one line, say the name of a tensor.

    Returns:
        The same where `str.isprintable` says so; else with `\n`, `\x1b`, `\u202e` and the like.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

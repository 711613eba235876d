"""Names that must never reach a page as anything but text."""

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a&amp;b",
    "'; --x",
    "</style></svg>",
    "日本 é",
    "a\x1b[2Jb\u202ec",
    "x" * 300,
)

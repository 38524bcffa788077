"""
Lists as text: `a,b` or a JSON array, as they come from the environment and from flags. Pure.
"""

from __future__ import annotations

import json


def as_list(value: object) -> object:
    """Text as a list. Any other value unchanged: a TOML array, or a mistake that the settings describe."""
    return parse_list(value) if isinstance(value, str) else value


def parse_list(text: str) -> list[str]:
    """The parts of comma-separated text, or the texts of a JSON array. ValueError if an array is not one of texts."""
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("is neither comma-separated text nor a JSON array of texts")
    return parts

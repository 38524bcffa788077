"""KombuPublisher: later."""
from typing import Any
class KombuPublisher:
    def __init__(self, clients: Any) -> None: ...

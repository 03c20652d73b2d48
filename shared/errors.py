"""The errors a user can cause or meet. Each message says what is wrong and what to change."""


class InvalidRequest(ValueError):
    """A request that cannot be served as asked; `param` names the field to change.

    code: what a program can tell it by, where OpenAI has a word for it.
    """

    def __init__(self, param: str, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param
        self.code = code


class InvalidConfig(ValueError):
    """An engine setting that makes no sense; the message names it and its range."""


class SetupError(RuntimeError):
    """The machine, the model or a file is not as needed. A command prints it as one line and exits with 2."""


class EngineError(RuntimeError):
    """A step of the engine failed (the model raised, memory ran out). Every waiting caller gets it."""


class QueueFull(RuntimeError):
    """As many requests wait as may wait. Try again in about `retry_after_s` seconds."""

    def __init__(self, capacity: int, retry_after_s: float = 1.0) -> None:
        super().__init__(
            f"no room in the queue: at most {capacity} requests may wait; try again in {retry_after_s:.0f} s"
        )
        self.retry_after_s = retry_after_s

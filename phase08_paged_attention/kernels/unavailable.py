"""Why a kernel cannot run here."""


class KernelUnavailable(RuntimeError):
    """The message is a reason, to be followed by what is used instead: "no C++ compiler was found"."""
